"""Reports of a probe: its programs in the kernel, and the effect of a replacement on its maps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.config.model import Side


class Fate(StrEnum):
    """What a replacement does to the contents of a map."""

    KEPT = "kept"
    """The new program works on the same map."""
    WINDOW = "new window"
    """A snapshot metric's: the old window is exported, the next one starts empty as always."""
    EMPTY = "starts empty"
    """Its layout, size or kind changed; what a metric shows of it is exported before."""
    NEW = "new"
    AS_IT_WAS = "as it was"
    """Of a roll-back: what it held when its program was replaced."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MapFate:
    """One map's."""

    side: Side
    map: str
    fate: Fate
    reason: str
    """Such as `value 8 bytes, was 4`; empty where the fate says all."""
    line: int
    """Of its declaration in the new source; 0 where it has none."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """What a replacement keeps and what it loses, told before it is made."""

    maps: tuple[MapFate, ...]
    lost_metrics: tuple[str, ...]
    new_metrics: tuple[str, ...]
    warnings: tuple[str, ...]
    """Such as another verdict for the test frames than the running program's."""


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """A program of a probe, in the kernel."""

    side: Side
    interface: str
    hook: str
    """`xdp`, `tc ingress` or `tc egress`."""
    mode: str
    """How the hook is attached: `native`, `generic`, `tcx`, ..."""
    function: str
    program_id: int
    memory: int
    """Bytes of its maps, of all its clones."""
