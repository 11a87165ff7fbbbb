"""Kinds of maps, a row each: how their entries are found, and how they can be read and cleared.

Each `bpf.maps.readers.Reader` tries whether the running kernel can do so. And kernel memory of
maps: how much this process holds, and how much it may lock on old kernels.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from bpf.abi import BpfCommand, MapType


class Shape(StrEnum):
    """How an entry is found."""

    HASH = "hash"
    """By a stored key."""
    ARRAY = "array"
    """By its index; every entry always exists, and clearing sets it to zero."""
    LPM = "lpm"
    """By the longest prefix that matches."""
    QUEUE = "queue"
    """Oldest first; a read takes the entry out."""
    STACK = "stack"
    """Newest first; a read takes the entry out."""


@dataclass(frozen=True, slots=True)
class MapKind:
    """Abilities of one kind of map."""

    type: MapType
    shape: Shape | None = None
    """None if the contents mean nothing outside the kernel (programs, sockets, other maps)."""
    percpu: bool = False
    """An entry has a value for each possible CPU."""
    clearing: BpfCommand | None = None
    """The batch command that clears what a batch look-up has read."""
    drain: bool = False
    """A program can copy all entries out, see `bpf.maps.drain`."""
    mmap: bool = False
    """User space can map the values into memory (BPF_F_MMAPABLE)."""
    increment: bool = True
    """bcc's `increment()` inserts a key that is missing, or every key exists."""
    moves: bool = False
    """The kernel may move an entry while a drain walks the map (LRU), which then meets it twice."""
    records: bool = False
    """Entries are records; the map does not tell their type and size."""
    nested: bool = False
    """Values are maps; a new map needs an inner map as its model."""

    @property
    def name(self) -> str:
        """Name for messages, for example `lru percpu hash`."""
        return self.type.name.lower().replace("_", " ")

    @property
    def is_queue(self) -> bool:
        """A queue or a stack."""
        return self.shape in (Shape.QUEUE, Shape.STACK)

    @property
    def numbered(self) -> bool:
        """Entries have no stored key: a reader numbers them."""
        return self.is_queue or self.shape == Shape.ARRAY

    @property
    def expires(self) -> bool:
        """Old entries can be swept by a time in the entry."""
        return self.shape == Shape.HASH and not self.percpu


_TAKE, _ZERO = BpfCommand.MAP_LOOKUP_AND_DELETE_BATCH, BpfCommand.MAP_UPDATE_BATCH
_DELETE = BpfCommand.MAP_DELETE_BATCH
_HASH, _ARRAY = Shape.HASH, Shape.ARRAY

# fmt: off
_ROWS = (
    MapKind(MapType.HASH, _HASH, clearing=_TAKE, drain=True),
    MapKind(MapType.PERCPU_HASH, _HASH, percpu=True, clearing=_TAKE, drain=True, increment=False),
    MapKind(MapType.LRU_HASH, _HASH, clearing=_TAKE, drain=True, increment=False, moves=True),
    MapKind(MapType.LRU_PERCPU_HASH, _HASH, percpu=True, clearing=_TAKE, drain=True,
            increment=False, moves=True),
    MapKind(MapType.ARRAY, _ARRAY, clearing=_ZERO, drain=True, mmap=True),
    MapKind(MapType.PERCPU_ARRAY, _ARRAY, percpu=True, clearing=_ZERO, drain=True),
    MapKind(MapType.LPM_TRIE, Shape.LPM, clearing=_DELETE),
    MapKind(MapType.QUEUE, Shape.QUEUE, drain=True),
    MapKind(MapType.STACK, Shape.STACK, drain=True),
    MapKind(MapType.RINGBUF, Shape.QUEUE, records=True),
    MapKind(MapType.PERF_EVENT_ARRAY, Shape.QUEUE, records=True),
    MapKind(MapType.ARRAY_OF_MAPS, nested=True),
    MapKind(MapType.HASH_OF_MAPS, nested=True),
)
# fmt: on
KINDS = {type_: MapKind(type_) for type_ in MapType} | {row.type: row for row in _ROWS}
"""Every kind. If a kind is missing in `_ROWS`, its maps hold nothing to read."""


_UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def held_maps() -> dict[int, int]:
    """Bytes of each map that this process holds by a descriptor or a mapping, by the map's id."""
    maps: dict[int, int] = {}
    for entry in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            text = entry.read_text(encoding="ascii")
            if "map_id:" in text:
                found = fields(text)
                maps[int(found["map_id"])] = int(found.get("memlock", 0))
    return maps


def fields(fdinfo: str) -> dict[str, str]:
    """Return the lines `label: value` of a file of /proc/PID/fdinfo."""
    return dict(line.split(":", 1) for line in fdinfo.splitlines() if ":" in line)


def map_memory(fd: int) -> int:
    """Bytes of kernel memory that a map takes: `memlock` of its fdinfo."""
    text = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
    return int(fields(text).get("memlock", 0))


def unlock() -> None:
    """Lift RLIMIT_MEMLOCK, against which kernels before 5.11 count maps and programs.

    Without CAP_SYS_RESOURCE only up to the hard limit: `probedeck doctor` says if that is too low.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    for limits in (_UNLIMITED, (hard, hard)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)
            return
