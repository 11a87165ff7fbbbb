"""Captures: the frames of a pcap or pcapng file as Ethernet frames.

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng; link types: tcpdump.org. Unlike dpkt,
the reader gives times in nanoseconds, the clock and link type of each interface, the original
length of cut frames, and the place where a file breaks off.
"""

from __future__ import annotations

import errno
import gzip
import io
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np

from app.files import as_invoker
from app.lab.frames import CapturedFrame, FrameBatch
from bpf.errors import UsageError
from probes.config.trusted_file import open_regular

T = TypeVar("T")
READ_BYTES = 1 << 18
"""Bytes of a capture that one read takes."""
FRAME_HEADER = 14
"""Bytes of Ethernet's header."""
MAX_LATE_NS = 1_000_000_000
"""By how much a frame may be earlier than the one before it; else the clock has been set back."""
_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
_PACKED = {b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"\x04\x22\x4d\x18": "lz4", b"PK\3\4": "zip"}
"""First bytes of packed files that are not unpacked here, and the names of their formats."""
MAX_NS = (1 << 63) - 1
"""Greatest time of a frame."""
_ROOM = 64
"""Bytes that a frame takes beside its data, about."""
_ETHERNET = 1
"""Link type."""
MAX_BLOCK = 16 << 20
"""Most bytes of a frame or of a pcapng block; a file that claims more is broken."""
_PCAP = {
    bytes.fromhex(magic): (order, unit)
    for magic, order, unit in (
        ("d4c3b2a1", "<", 1000), ("a1b2c3d4", ">", 1000),
        ("4d3cb2a1", "<", 1), ("a1b23c4d", ">", 1),
    )
}  # fmt: skip
"""Byte order, and the unit of a time's fraction in ns, by magic number."""
_SECTION, _INTERFACE, _OLD_PACKET, _SIMPLE_PACKET, _PACKET = 0x0A0D0D0A, 1, 2, 3, 6
"""Types of pcapng blocks."""
_SECTION_MAGIC = struct.pack(">I", _SECTION)
_ORDERS = {bytes.fromhex("4d3c2b1a"): "<", bytes.fromhex("1a2b3c4d"): ">"}
_RESOLUTION, _OFFSET = 9, 14
"""Options of an interface: the unit of its times, and seconds to add to them."""
# No host has this address, so no host accepts these frames.
_ADDRESS = b"\x02\0\0\0\0\x01"
_ETHERTYPES = {4: b"\x08\x00", 6: b"\x86\xdd"}
_PPP_ETHERTYPES = {
    b"\x00\x21": _ETHERTYPES[4],
    b"\x00\x57": _ETHERTYPES[6],
    b"\x02\x81": b"\x88\x47",  # MPLS
}
_NO_ETHERTYPE = b"\xff\xff"
"""Reserved: the monitor counts frames without an IP version as not IP, too."""


def _raw(data: bytes) -> bytes:
    return _ADDRESS * 2 + _ETHERTYPES.get(data[0] >> 4 if data else 0, _NO_ETHERTYPE) + data


def _hdlc(data: bytes) -> bytes:
    return _ADDRESS * 2 + data[2:]


def _ppp(data: bytes) -> bytes:
    # Address and control, and the upper byte of the protocol, may be left out.
    if data[:1] in (b"\x0f", b"\x8f"):
        return _hdlc(data)
    data = data[2:] if data[:2] == b"\xff\x03" else data
    size = 1 if data and data[0] & 1 else 2
    kind = _PPP_ETHERTYPES.get(data[:size].rjust(2, b"\0"), _NO_ETHERTYPE)
    return _ADDRESS * 2 + kind + data[size:]


_LINKS: Mapping[int, Callable[[bytes], bytes]] = {
    _ETHERNET: bytes,
    # Raw IP: numbers of some systems, of all systems, and by version.
    **dict.fromkeys((12, 14, 101, 228, 229), _raw),
    # BSD loopback: four bytes with the IP version.
    **dict.fromkeys((0, 108), lambda data: _raw(data[4:])),
    # Linux's cooked captures, of both versions.
    113: lambda data: _ADDRESS + data[6:12] + data[14:],
    276: lambda data: _ADDRESS + data[12:18] + data[:2] + data[20:],
    **dict.fromkeys((9, 50), _ppp),
    # PPP after a direction. pppd writes it in place of the address.
    166: lambda data: _ppp(data[2:]),
    204: lambda data: _ppp(data[1:]),
    # PPPoE without Ethernet's header.
    51: lambda data: _ADDRESS * 2 + b"\x88\x64" + data,
    104: _hdlc,
}
"""By link type, the Ethernet frame of a frame."""
_KNOWN = "Ethernet, raw IP, PPP, Linux cooked and BSD loopback are known"
_NAMES = {105: "802.11", 127: "802.11 radiotap", 189: "USB", 220: "USB"}


def link_words(kind: int) -> str:
    """Return a link type in words: `105 (802.11)`."""
    return f"{kind} ({_NAMES[kind]})" if kind in _NAMES else str(kind)


class _Interface(NamedTuple):
    kind: int
    """Link type."""
    units: int
    """Units of its times in a second."""
    offset: int
    """Seconds."""
    snap: int
    """Most bytes of a captured frame; 0: no limit."""

    def ns(self, time: int) -> int:
        ns = self.offset * 1_000_000_000 + time * 1_000_000_000 // self.units
        if abs(ns) > MAX_NS:
            raise _BrokenError("a frame is of a year after 2262")
        return ns


class _Run(NamedTuple):
    """Frames of one link type."""

    kind: int
    batch: FrameBatch

    def ethernet(self) -> Iterator[CapturedFrame]:
        """Yield Ethernet frames of a link type in _LINKS."""
        convert = _LINKS[self.kind]
        for time_ns, data, length in self.batch.frames():
            frame = convert(data)
            yield CapturedFrame(time_ns, frame, length + len(frame) - len(data))


class _BrokenError(Exception):
    """The file breaks off, or contradicts itself."""


def open_capture(path: str) -> BinaryIO:
    """Open a file with the user's rights. Raises UsageError."""
    try:
        with as_invoker():
            return open(path, "rb", buffering=READ_BYTES, opener=open_regular)
    except OSError as error:
        hint = "write the capture to a file" if error.errno == errno.EINVAL else ""
        raise UsageError(f"cannot read {path}: {error.strerror}", hint=hint) from None


class _Unpacked(io.RawIOBase):
    """A packed file. Unlike `read` of GzipFile and ZstdFile, it yields all data before a defect.
    One read takes as much as it can: its files yield some kilobytes at a time."""

    def __init__(self, packed: Any, *errors: type[Exception]) -> None:
        self._packed, self._errors = packed, errors
        self._defect = ""

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        filled = 0
        try:
            while not self._defect and (count := self._packed.readinto1(into[filled:])):
                filled += count
        except EOFError:
            self._defect = "it breaks off"
        except self._errors as error:
            self._defect = f"its compression is broken: {error}"
        if self._defect and not filled:
            raise _BrokenError(self._defect)
        return filled


class CaptureFile:
    """Iterates once over the frames of a file, or over batches of them; only the current batch is
    in memory.

    The file may be packed by gzip or zstd. Raises UsageError for a file of another kind, and for
    one whose link types cannot become Ethernet.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.broken = ""
        """The defect of the file, known after the last frame; empty for a whole file."""
        self.left_out: Counter[int] = Counter()
        """Number of frames that cannot become Ethernet frames, by link type."""
        self._file: Any = file
        """Has `read1`, too."""
        self._order = "<"
        self._kinds: set[int] = set()
        # Standard input has no way back.
        begin = file.peek(6) if isinstance(file, io.BufferedReader) else b""
        if begin.startswith(_GZIP):
            unpacked = _Unpacked(gzip.GzipFile(fileobj=file), gzip.BadGzipFile, zlib.error)
            self._file = io.BufferedReader(unpacked, READ_BYTES)
        elif begin.startswith(_ZSTD):
            from app.recording.frames import zstd

            unpacked = _Unpacked(zstd.ZstdFile(file), zstd.ZstdError)
            self._file = io.BufferedReader(unpacked, READ_BYTES)
        for mark, form in _PACKED.items():
            if begin.startswith(mark):
                raise UsageError(f"{name} is packed by {form}", hint="unpack it before")
        magic = self._magic(name)
        if magic in _PCAP:
            parts = self._pcap(*_PCAP[magic])
        elif magic == _SECTION_MAGIC:
            parts = _joined(self._whole(self._pcapng()))
        else:
            raise UsageError(f"{name} is neither a pcap nor a pcapng file")
        parts = self._whole(parts)
        # Blocks before the first frame contain the link types.
        first = list(islice(parts, 1))
        self.begin_ns = int(first[0][0].batch.times_ns[0]) if first else 0
        """Time of the first frame."""
        if not self._kinds and self.broken:
            raise UsageError(f"{name} has no frame: {self.broken}")
        if self._kinds and not self._kinds & _LINKS.keys():
            words = ", ".join(map(link_words, sorted(self._kinds)))
            raise UsageError(f"{name} has link type {words}", hint=_KNOWN)
        self._parts = chain(first, parts)

    @property
    def defects(self) -> Sequence[str]:
        """Defects of the file, known after the last frame."""
        left_out = [
            f"{count} frames of link type {link_words(kind)} left out"
            for kind, count in self.left_out.items()
        ]
        return [*left_out, *([f"the file is not whole: {self.broken}"] if self.broken else [])]

    def _magic(self, name: str) -> bytes:
        try:
            return bytes(self._file.read(4))
        except _BrokenError as error:
            raise UsageError(f"{name} has no frame: {error}") from None

    def __iter__(self) -> Iterator[CapturedFrame]:
        for part in self._parts:
            yield from self._ethernet(part)

    def batches(self) -> Iterator[FrameBatch]:
        """Iterate over the frames as batches, none of them empty."""
        for part in self._parts:
            if [run.kind for run in part] == [_ETHERNET]:
                yield part[0].batch
            elif frames := list(self._ethernet(part)):
                yield FrameBatch.of(frames)

    def _ethernet(self, part: Sequence[_Run]) -> Iterator[CapturedFrame]:
        for run in part:
            if run.kind in _LINKS:
                yield from run.ethernet()
            else:
                self.left_out[run.kind] += len(run.batch.starts)

    def _whole(self, items: Iterator[T]) -> Iterator[T]:
        try:
            yield from items
        except _BrokenError as error:
            self.broken = str(error)

    def _pcap(self, order: str, unit: int) -> Iterator[Sequence[_Run]]:
        _, _, _, _, _, kind = struct.unpack(order + "HHiIII", self._need(20))
        # The upper bits are flags and the length of checksums.
        kind &= 0xFFFF
        self._kinds.add(kind)
        header, length_at = 16, struct.Struct(order + "8xI").unpack_from
        rest, captured = b"", 0
        # A pipe has less at a time, and must not wait.
        while more := self._file.read1(READ_BYTES):
            data = rest + more
            found, at = [], 0
            with suppress(struct.error):  # the last one has no whole header
                while True:
                    found.append(at)
                    (captured,) = length_at(data, at)
                    at += header + captured
            if at > len(data):
                found.pop()
            at = found.pop()
            if found:
                starts = np.array(found, "i8")
                words = np.ndarray((len(data) - 3,), order + "u4", data, strides=(1,))
                seconds, fractions, sizes, lengths = (
                    words[starts + offset].astype("i8") for offset in range(0, header, 4)
                )
                times_ns = seconds * 1_000_000_000 + fractions * unit
                yield [_Run(kind, FrameBatch(data, starts + header, sizes, lengths, times_ns))]
            if captured > MAX_BLOCK:
                raise _BrokenError(f"a frame claims to have {captured} bytes")
            rest = data[at:]
        if rest:
            raise _BrokenError("it breaks off")

    def _pcapng(self) -> Iterator[tuple[int, CapturedFrame]]:
        """Yield link types and frames."""
        interfaces: list[_Interface] = []
        last_ns = 0
        start = _SECTION_MAGIC + self._need(4)
        while start:
            (kind,) = self._fields("I", start)
            if start[:4] == _SECTION_MAGIC:
                body = self._section(start[4:])
                interfaces.clear()
            else:
                body = self._body(self._fields("I", start[4:])[0])
            if kind == _INTERFACE:
                interfaces.append(self._interface(body))
                self._kinds.add(interfaces[-1].kind)
            elif kind in (_PACKET, _OLD_PACKET):
                number, high, low, captured, length = self._fields("5I", body)
                if kind == _OLD_PACKET:
                    # The other half counts dropped packets.
                    (number,) = self._fields("H", body)
                interface = self._of(interfaces, number)
                last_ns = interface.ns(high << 32 | low)
                data = self._part(body, 20, captured)
                yield interface.kind, CapturedFrame(last_ns, data, length)
            elif kind == _SIMPLE_PACKET:
                # The packet has no time.
                (length,) = self._fields("I", body)
                interface = self._of(interfaces, 0)
                captured = min(length, interface.snap or length)
                data = self._part(body, 4, captured)
                yield interface.kind, CapturedFrame(last_ns, data, length)
            start = self._next(8)

    def _section(self, size: bytes) -> bytes:
        """Return the rest of a section's header, and set the byte order."""
        magic = self._need(4)
        if magic not in _ORDERS:
            raise _BrokenError("a section has no byte order")
        self._order = _ORDERS[magic]
        return magic + self._body(self._fields("I", size)[0], read=12)

    def _body(self, size: int, read: int = 8) -> bytes:
        """Return the rest of a block after `read` bytes, except for the size at its end."""
        if size % 4 or size < 12:
            raise _BrokenError(f"a block claims to have {size} bytes")
        return self._need(size - read)[:-4]

    def _interface(self, body: bytes) -> _Interface:
        kind, _, snap = self._fields("HHI", body)
        units, offset, at = 1_000_000, 0, 8
        while at + 4 <= len(body):
            option, size = struct.unpack_from(self._order + "HH", body, at)
            value = self._part(body, at + 4, size)
            if option == _RESOLUTION and value:
                # The highest bit chooses the base of the power.
                units = (2 if value[0] & 0x80 else 10) ** (value[0] & 0x7F)
            elif option == _OFFSET:
                (offset,) = self._fields("q", value)
            at += 4 + (size + 3 & ~3)
        return _Interface(kind, units, offset, snap)

    def _of(self, interfaces: list[_Interface], number: int) -> _Interface:
        if number >= len(interfaces):
            raise _BrokenError(f"a frame is of interface {number}, and there are {len(interfaces)}")
        return interfaces[number]

    def _fields(self, form: str, data: bytes) -> tuple[int, ...]:
        size = struct.calcsize(self._order + form)
        return struct.unpack(self._order + form, self._part(data, 0, size))

    def _part(self, data: bytes, start: int, size: int) -> bytes:
        part = data[start : start + size]
        if len(part) < size:
            raise _BrokenError("a block is shorter than its contents")
        return part

    def _next(self, size: int) -> bytes:
        """Return the next bytes; empty at the end of the file."""
        data: bytes = self._file.read(size)
        if data and len(data) < size:
            raise _BrokenError("it breaks off")
        return data

    def _need(self, size: int) -> bytes:
        if size > MAX_BLOCK:
            raise _BrokenError(f"a frame claims to have {size} bytes")
        data: bytes = self._file.read(size)
        if len(data) < size:
            raise _BrokenError("it breaks off")
        return data


def _joined(records: Iterator[tuple[int, CapturedFrame]]) -> Iterator[Sequence[_Run]]:
    """Join frames that follow each other, of some link types."""
    while part := _some(records):
        kinds = groupby(part, key=itemgetter(0))
        yield [_Run(kind, FrameBatch.of([frame for _, frame in of])) for kind, of in kinds]


def _some(records: Iterator[tuple[int, CapturedFrame]]) -> Sequence[tuple[int, CapturedFrame]]:
    """Take the next frames, together READ_BYTES or more."""
    taken, size = [], 0
    for record in records:
        taken.append(record)
        size += _ROOM + len(record[1].data)
        if size >= READ_BYTES:
            break
    return taken


def check_capture(path: str) -> None:
    """Raise UsageError if the file is no capture, or if no frame of it can become Ethernet."""
    with open_capture(path) as file:
        CaptureFile(file, path)
