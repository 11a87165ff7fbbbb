"""The options of path tracing: `[paths]`, options of `run`, `lab` and `trace`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import ClassVar

from app.cli.options import PATHS, Options
from app.config.model import Ui
from app.config.schema import setting
from bpf.errors import UsageError
from probes.path.options import Guard, Guarded, Order, PathOptions, Per

_DEFAULT = PathOptions()


@dataclass(frozen=True, slots=True)
class PathSettings:
    """Options with the names and defaults of PathOptions."""

    PREFIX: ClassVar[str] = "path"

    rate: float = setting(PATHS, _DEFAULT.rate, "Most probes a second, 0.1 to 100000.", "N")
    per: Per = setting(PATHS, _DEFAULT.per, "Count the rate for each hop, or for a destination.")
    burst: int = setting(PATHS, _DEFAULT.burst, "Probes that one packet may cause, 1 to 8.", "N")
    order: Order = setting(
        PATHS, _DEFAULT.order, "Send the probe or the application's packet first."
    )
    guard: Guard = setting(PATHS, _DEFAULT.guard, "Defect that makes the destination drop a probe.")
    guarded: Guarded = setting(
        PATHS, _DEFAULT.guarded, "Guard probes that may reach the destination, or all probes."
    )
    pass_answers: bool = setting(PATHS, False, "Let the host see the answers, too.")
    timeout: float = setting(
        PATHS, _DEFAULT.timeout, "Count a probe as lost after this time, 0.05 to 60.", "SECONDS"
    )
    max_hops: int = setting(PATHS, _DEFAULT.max_hops, "Highest TTL or hop limit, 1 to 30.", "N")
    mtu: bool = setting(PATHS, False, "Send packets to find the path MTU and its smallest link.")

    def options(self) -> PathOptions:
        """Return the options of a probe. Raises UsageError if they are impossible."""
        kinds = {"per": Per, "order": Order, "guard": Guard, "guarded": Guarded}
        given = asdict(self)
        made = PathOptions(**given | {name: kind(given[name]) for name, kind in kinds.items()})
        made.check()
        return made

    def problems(self) -> Iterator[tuple[str, UsageError]]:
        """Yield the mistakes of single values, each with the name of its field."""
        for name, value in asdict(self).items():
            try:
                PathSettings(**{name: value}).options()
            except UsageError as error:
                yield name, error


SECTIONS: dict[str, type] = {"ui": Ui, "run": Options, "paths": PathSettings}
"""Sections of `config.toml` whose keys are the fields of a class, in the order of display."""
