"""Reports of a probe: its programs in the kernel, and the effect of a replacement."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probes.config.model import Side


class Fate(StrEnum):
    """Effect of a replacement on the contents of a map."""

    KEPT = "kept"
    """The new program works on the same map."""
    WINDOW = "new window"
    """A snapshot metric exports the old window; the next one starts empty as always."""
    EMPTY = "starts empty"
    """Its layout, size or kind changed; its metrics export it before."""
    NEW = "new"
    AS_IT_WAS = "as it was"
    """After a roll-back: its contents from the time of the replacement."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class MapFate:
    """Effect of a replacement on one map."""

    side: Side
    map: str
    fate: Fate
    reason: str
    """For example `value 8 bytes, was 4`; empty if the fate is clear."""
    line: int
    """Line of its declaration in the new source; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class Compatibility:
    """Effects of a replacement, known before it happens."""

    maps: tuple[MapFate, ...] = ()
    lost_metrics: tuple[str, ...] = ()
    new_metrics: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """For example a changed verdict for a test frame."""


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """A program of a probe in the kernel."""

    side: Side
    interface: str
    hook: str
    """`xdp`, `tc ingress` or `tc egress`."""
    mode: str
    """Attachment of the hook: `native`, `generic`, `tcx`, ..."""
    function: str
    program_id: int
    memory: int
    """Bytes of the maps of all its clones."""
