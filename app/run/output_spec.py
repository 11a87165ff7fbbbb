"""Where tables go, and which tables. The module loads no numpy, so the start is fast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from bpf.errors import TextError, UsageError
from probes.flow.kinds import KINDS, PREFIXES
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE

if TYPE_CHECKING:
    from app.outputs.filtering import Filtering

SOCKET_TABLES = ("sockets", "owners", "ownership")
"""Tables of the probe of sockets: a run that names one of them looks for owners."""
VIEWS = (
    "flows", *KINDS, "hops", "paths", "traces", METRICS_TABLE, TRIGGERS_TABLE, POLICIES_TABLE,
    *SOCKET_TABLES, "windows", "events",
)  # fmt: skip
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Destination, format and choice of the tables of a run."""

    out: str
    """A directory, or `-` for standard output."""
    format: str | None
    """None: CSV; for a probe's metrics the format of its configuration."""
    views: tuple[str, ...]
    metrics: bool
    """Whether to write the tables of probes' metrics, too."""
    filter: str = ""
    """The filter of rows; empty: all rows."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """Saved filters, which `filter` may name."""
    prefixes: tuple[int, int] = PREFIXES
    """Lengths of networks' prefixes, of IPv4 and IPv6."""
    owners: bool | None = None
    """Whether flows have owners; None: if the filter needs them."""

    @classmethod
    def nothing(cls) -> OutputSpec:
        """Return the output of a run that writes no table."""
        return cls("-", None, (), metrics=False)

    @classmethod
    def of(
        cls, out: str, format_name: str | None, views: str, every: Sequence[str], usual: str,
        *, monitor: bool = False, filter_text: str = "", saved: Mapping[str, str] = _NONE,
        prefixes: tuple[int, int] = PREFIXES, owners: bool | None = None,
    ) -> OutputSpec:  # fmt: skip
        """Return the output of `views`, names with commas. Raises UsageError for an unknown view.

        If `views` is empty, standard output gets the view `usual`, and a directory `every` view.
        The view `metrics` is the monitor's table, and a table for each metric of each probe.
        Standard output takes one table: the monitor's, if the `monitor` runs.
        """
        named = tuple(dict.fromkeys(views.split(","))) if views else ()
        names = named or ((usual,) if out == "-" else tuple(every))
        for name in names:
            if name not in VIEWS:
                raise UsageError(f"no view {name!r}", hint=f"there are {', '.join(VIEWS)}")
        # The API may add a policy later, which starts the monitor.
        own = monitor or (named and out != "-")
        built_in = tuple(name for name in names if name != METRICS_TABLE or own)
        metrics = METRICS_TABLE in names and not (monitor and out == "-")
        return cls(out, format_name, built_in, metrics, filter_text, saved, prefixes, owners)

    @property
    def needs_owners(self) -> bool:
        """Whether the filter needs owners of flows. Raises UsageError as `filtering` does."""
        return bool(self.filter) and self.filtering().needs_owners

    def filtering(self) -> Filtering:
        """Return the filters of the views. Raises UsageError for a filter that fits no view."""
        from app.outputs.filtering import Filtering  # Imported here: it needs numpy.

        try:
            return Filtering.of(self.filter, self.views, self.saved, self.owners)
        except TextError as error:
            raise error.of("--filter") from None
