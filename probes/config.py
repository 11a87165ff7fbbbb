"""A probe's configuration (S1.2, S1.3): the same model for files, REST and the console's editor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from bpf.attach import Hook

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")]
"""A probe's or a metric's; it becomes part of a file's name."""
Format = Literal["json", "xml", "csv", "jsonl"]
Side = Literal["ingress", "egress"]
SIDES: tuple[Side, Side] = ("ingress", "egress")
MAX_SOURCE = 1 << 20
"""Bytes of one source."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Metric(_Model):
    """One map whose contents leave the system (S1.9: no other map's do)."""

    name: Name
    map: str
    """The map's name in the source."""
    help: str = ""
    snapshot: bool = False
    """Each window has a map of its own, read when no packet reaches it any more (S1.13)."""
    init: bool = False
    """Emptied when it is read (S1.12); a snapshot metric always is."""
    agg: Literal["", "sum", "avg", "min", "max"] = ""
    """Over the CPUs of a per-CPU map; empty: one value for each CPU (S1.11)."""
    export: bool = True
    """False: only emptied at each export, never read (S1.18)."""
    types: dict[str, str] = Field(default_factory=dict)
    """What a field is, where its C type does not tell: `{"key.saddr": "ipv4"}`."""


class Direction(_Model):
    """The program of one direction, and what leaves it."""

    interface: str = ""
    """Empty only in a file that is run with `-i`."""
    hook: Literal["xdp", "tc"] | None = None
    """None: XDP for ingress and TC for egress (S1.4)."""
    source: str = ""
    """eBPF C."""
    function: str = ""
    """The program, where the source has more than one."""
    metrics: tuple[Metric, ...] = ()


class Health(_Model):
    """What a new generation must show after a replacement, or the last good one comes back."""

    seconds: float = Field(5.0, ge=0.1, le=300)
    """How long it is looked at."""
    metrics: tuple[str, ...] = ()
    """Metrics that must move while packets arrive; empty: one of all."""


class ProbeConfig(_Model):
    """A probe: what the operator gives, and all that he gives (S1.5)."""

    name: Name
    format: Format = "json"
    interval: float = Field(1.0, ge=0, le=300)
    """Seconds between exports; 0: only when asked for."""
    ingress: Direction | None = None
    egress: Direction | None = None
    health: Health | None = None

    def directions(self) -> Iterator[tuple[Side, Direction]]:
        """Those that have a program."""
        for side in SIDES:
            if (direction := getattr(self, side)) is not None:
                yield side, direction

    def with_source(self, side: Side, source: str) -> ProbeConfig:
        """The same probe with another source in one direction."""
        edited = getattr(self, side).model_copy(update={"source": source})
        return self.model_copy(update={side: edited})


def hook_of(side: Side, direction: Direction) -> Hook:
    """Where a direction's program is attached."""
    if side == "egress":
        return Hook.TC_EGRESS
    return Hook.TC_INGRESS if direction.hook == "tc" else Hook.XDP
