"""Where tables go, and which; without what writes them, so that the command line begins quickly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from bpf.errors import TextError, UsageError
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE

if TYPE_CHECKING:
    from app.outputs.filtering import Filtering

VIEWS = (
    "flows",
    "hops",
    "paths",
    METRICS_TABLE,
    TRIGGERS_TABLE,
    POLICIES_TABLE,
    "windows",
    "events",
)
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """Where tables go."""

    out: str
    """A directory, or `-`."""
    format: str | None
    """None: CSV, and of a probe's metrics what its configuration says."""
    views: tuple[str, ...]
    metrics: bool
    """Whether the tables of probes' metrics are written too."""
    filter: str = ""
    """Which rows are written."""
    saved: Mapping[str, str] = field(default_factory=dict)
    """Filters by name, for that."""

    @classmethod
    def of(
        cls, out: str, format_name: str | None, views: str, every: Sequence[str], usual: str,
        *, monitor: bool = False, filter_text: str = "", saved: Mapping[str, str] = _NONE,
    ) -> OutputSpec:  # fmt: skip
        """`views` are names and commas; where there are none, `usual` for standard output, and
        `every` for a directory. Raises UsageError for a view that there isn't.

        `metrics` are the monitor's, and a table for each metric of each probe; for standard output,
        which takes one, the monitor's where it runs: `monitor`.
        """
        named = tuple(dict.fromkeys(views.split(","))) if views else ()
        names = named or ((usual,) if out == "-" else tuple(every))
        for name in names:
            if name not in VIEWS:
                raise UsageError(f"no view {name!r}", hint=f"there are {', '.join(VIEWS)}")
        # A policy that the API adds starts the monitor too.
        own = monitor or (named and out != "-")
        built_in = tuple(name for name in names if name != METRICS_TABLE or own)
        metrics = METRICS_TABLE in names and not (monitor and out == "-")
        return cls(out, format_name, built_in, metrics, filter_text, saved)

    def filtering(self) -> Filtering:
        """Which rows are written. Raises UsageError for a filter that is none of the views'."""
        from app.outputs.filtering import Filtering  # numpy, which a console starts without

        try:
            return Filtering.of(self.filter, self.views, self.saved)
        except TextError as error:
            raise error.of("--filter") from None
