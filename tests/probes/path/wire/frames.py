"""The other end of a host's interface: a test sees each packet that leaves, and is the network.

The interface is a TAP or TUN. Frames of the host are here when `send` returns, in order, with their
offload requests. So tests neither wait nor guess.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, cast

from app.lab import netns
from bpf.abi import ProgType
from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.attach.interface import find
from bpf.compiler import Compiled, Compiler
from probes.hooks import Hooks
from probes.hooks.interface_hook import InterfaceHook
from probes.path.options import Guard, Order, PathOptions
from probes.path.probe import PathProbe
from tests.support.paths import probe_numbers

HOST = {4: "10.96.0.1", 6: "fd96::1"}
PEER = {4: "10.96.0.2", 6: "fd96::2"}
"""Traced destinations by IP version."""
ROUTER = {4: "10.96.9.%d", 6: "fd96:9::%d"}
"""Of a router, by its hop."""
TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
ECHO = {4: socket.IPPROTO_ICMP, 6: socket.IPPROTO_ICMPV6}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
ECHO_REQUEST = {4: 8, 6: 128}
CHECKSUM_AT = {TCP: 16, UDP: 6, ECHO[4]: 2, ECHO[6]: 2}
MAGIC = 0x70646B31
KEY, ID_FACTOR = 0x9B05688C2B3E6C1F, 0x5DE5


def _secrets(mark: int, key: int, id_factor: int) -> dict[str, str]:
    """Macros of a probe's secrets."""
    return {
        "MARK": f"{mark:#x}",
        "KEY": f"{key:#x}ULL",
        "ID_FACTOR": f"{id_factor}U",
        "ID_INVERSE": f"{pow(id_factor, -1, 1 << 16)}U",
    }


SECRETS = _secrets(0x5BE0CD19, KEY, ID_FACTOR)
OTHER_SECRETS = _secrets(0x1F83D9AB, 0x510E527FADE682D1, ID_FACTOR)
"""Of another process. Its IPv4 identifications are the same by a chance of 1 in 32768."""
BALANCE_AT = 16
"""Offset in an echo request that is a probe: a word that makes its checksum right, or wrong."""
WRONG = 0x5A5A

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_TUN, _TAP, _NO_PI, _VNET_HDR = 0x1, 0x2, 0x1000, 0x4000
_TUN_OFFLOADS = 0x1 | 0x2 | 0x4 | 0x20 | 0x40
"""Checksums; TCP segments of IPv4 and IPv6; UDP segments of both."""
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_NOARP = 0x8913, 0x8914, 0x80
_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
_SEGMENTED = {(TCP, 4): 1, (TCP, 6): 4, (UDP, 4): 5, (UDP, 6): 5}
_NEEDS_CHECKSUM, _CHECKSUM_IS_RIGHT = 1, 2
_PATIENT = {"net/ipv4/tcp_early_retrans": "0", "net/ipv4/tcp_rto_min_us": "9000000"}
"""No segment is sent again because a test, or its machine, takes its time."""
_ETHERTYPE = {4: 0x0800, 6: 0x86DD}
_TAGS = (0x8100, 0x88A8)


def ones_sum(data: bytes) -> int:
    """Internet checksum (RFC 1071) before its inversion."""
    data += b"\0" * (len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def packed(address: str) -> bytes:
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def ip_packet(source: bytes, destination: bytes, protocol: int, payload: bytes, ttl: int) -> bytes:
    """IPv4 or IPv6; the transport's checksum is put right."""
    pseudo = source + destination + struct.pack(">II", len(payload), protocol)
    if protocol != ECHO[4]:
        payload = with_checksum(payload, CHECKSUM_AT[protocol], ones_sum(pseudo))
    else:
        payload = with_checksum(payload, 2)
    if len(source) == 16:
        return struct.pack(">IHBB", 6 << 28, len(payload), protocol, ttl) + (
            source + destination + payload
        )
    header = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(payload), 0, 0, ttl, protocol, 0)
    return with_checksum(header + source + destination, 10) + payload


def with_checksum(data: bytes, at: int, start: int = 0) -> bytes:
    """`data` with its checksum, at offset `at`, put right."""
    data = data[:at] + b"\0\0" + data[at + 2 :]
    total = ones_sum(struct.pack(">H", start) + data)
    return data[:at] + struct.pack(">H", ~total & 0xFFFF) + data[at + 2 :]


def mark(sequence: int, key: int = KEY) -> bytes:
    """Payload of a UDP or ICMP probe."""
    low = sequence & 0xFFFF
    return struct.pack(">IHH", MAGIC, low, (low + 1) * key >> 48 & 0xFFFF)


@dataclass(frozen=True, slots=True)
class Packet:
    """One that the host sent."""

    ip: bytes
    """From the IP header on, its checksum as on a wire."""
    link: bytes = b""
    """Ethernet header and tags."""
    partial: bool = False
    """Whether its checksum was left to the interface."""
    segment: int = 0
    """Bytes of payload in each packet that it is to be cut into; 0 where it is one."""

    @property
    def version(self) -> int:
        return self.ip[0] >> 4

    @property
    def header(self) -> int:
        """Bytes of the IP header, without extensions."""
        return (self.ip[0] & 15) * 4 if self.version == 4 else 40

    @property
    def protocol(self) -> int:
        return self.ip[9 if self.version == 4 else 6]

    @property
    def ttl(self) -> int:
        return self.ip[8 if self.version == 4 else 7]

    @property
    def addresses(self) -> tuple[bytes, bytes]:
        """Source and destination."""
        start, size = (12, 4) if self.version == 4 else (8, 16)
        return self.ip[start : start + size], self.ip[start + size : start + 2 * size]

    @property
    def transport(self) -> bytes:
        return self.ip[self.header :]

    @property
    def header_is_right(self) -> bool:
        """Length and, of IPv4, checksum."""
        if self.version == 6:
            return int.from_bytes(self.ip[4:6], "big") == len(self.ip) - 40
        total = int.from_bytes(self.ip[2:4], "big")
        return total == len(self.ip) and ones_sum(self.ip[: self.header]) == 0xFFFF

    @property
    def checksum_is_right(self) -> bool:
        """The transport's, over what is really there."""
        pseudo = struct.pack(">II", len(self.transport), self.protocol)
        pseudo = b"".join(self.addresses) + pseudo if self.protocol != ECHO[4] else b""
        return ones_sum(pseudo + self.transport) == 0xFFFF

    @property
    def checksum(self) -> bytes:
        at = CHECKSUM_AT[self.protocol]
        return self.transport[at : at + 2]

    def without_checksum(self) -> bytes:
        """The IP packet, its transport's checksum blanked."""
        at = self.header + CHECKSUM_AT[self.protocol]
        return self.ip[:at] + b"\0\0" + self.ip[at + 2 :]

    def probe(self, hop: int, sequence: int, guard: Guard) -> Packet:
        """The probe that it is to cause; its transport's checksum is to be checked beside."""
        protocol, four = self.protocol, self.version == 4
        head = bytearray((self.transport + bytes(20))[: 20 if protocol == TCP else 8])
        discard = guard is Guard.DISCARD
        if protocol == TCP:
            head[12] = 5 << 4
            head[13] &= 0 if discard else 0x10
            head[18:20] = struct.pack(">H", sequence & 0xFFFF)
        else:
            head += mark(sequence)
        if protocol == UDP:
            claimed, whole = int.from_bytes(head[4:6], "big"), guard is Guard.NONE
            if whole or claimed <= len(head):
                claimed = len(head) + 8 * (not whole)
            head[4:6] = struct.pack(">H", claimed)
        elif protocol == ECHO[self.version]:
            pseudo = b"".join(self.addresses) + struct.pack(">II", 20, protocol)
            balance = ~ones_sum(bytes(head) + (b"" if four else pseudo)) & 0xFFFF
            head += struct.pack(">HH", balance ^ (0 if guard is Guard.NONE else WRONG), 0)
        transport = bytes(head)
        ip = bytearray(self.ip[: self.header])
        if four:
            identification = sequence * ID_FACTOR & 0xFFFF
            ip[2:6] = struct.pack(">HH", 20 + len(transport), identification)
            ip[8] = hop
            ip = bytearray(with_checksum(bytes(ip), 10))
        else:
            ip[4:6] = struct.pack(">H", len(transport))
            ip[7] = hop
        return replace(self, ip=bytes(ip) + transport, segment=0)


class Wire:
    """An interface of a new namespace; the calling thread is in that namespace."""

    def __init__(self, fd: int, raw: socket.socket, ethernet: bool) -> None:
        self.name: str = raw.getsockname()[0]
        self._fd, self._raw, self._ethernet = fd, raw, ethernet
        self._mac: bytes = raw.getsockname()[4]
        self.offload(False)

    def offload(self, wanted: bool) -> None:
        """Have the host leave checksums and segments to the interface, or not."""
        fcntl.ioctl(self._fd, _TUNSETOFFLOAD, _TUN_OFFLOADS if wanted else 0)

    def sent(self) -> list[Packet]:
        """Frames sent to PEER since the last call."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = self._packet(os.read(self._fd, 1 << 17))
                if packet and packet.addresses[1] in map(packed, PEER.values()):
                    found.append(packet)
        return found

    def receive(self, ip: bytes, link: bytes = b"") -> None:
        """Have the host receive it; `link` as the Ethernet header, tags and type."""
        if self._ethernet and not link:
            link = self._mac + self._mac + struct.pack(">H", _ETHERTYPE[ip[0] >> 4])
        os.write(self._fd, struct.pack("<BBHHHH", _CHECKSUM_IS_RIGHT, 0, 0, 0, 0, 0) + link + ip)

    def send(self, frame: bytes, checksum: tuple[int, int] = (0, 0), segment: int = 0) -> None:
        """Send an unchanged frame; `checksum` has the offsets where the sum starts and where it
        goes.

        To be cut into segments of that much payload, where `segment` is given.
        """
        kind = 0
        if segment:
            version, protocol = frame[14] >> 4, Packet(frame[14:]).protocol
            kind = _SEGMENTED[protocol, version]
        flags = _NEEDS_CHECKSUM if any(checksum) else 0
        linear = min(checksum[0] + 20, len(frame))
        header = struct.pack("<BBHHHH", flags, kind, linear, segment, *checksum)
        self._raw.send(header + frame)

    def _packet(self, frame: bytes) -> Packet | None:
        flags, _, _, segment, start, offset = struct.unpack_from("<BBHHHH", frame)
        data = bytearray(frame[10:])
        partial = bool(flags & _NEEDS_CHECKSUM)
        if partial:
            total = ones_sum(bytes(data[start:]))
            at = start + offset
            data[at : at + 2] = struct.pack(">H", ~total & 0xFFFF or 0xFFFF)
        size = 14 if self._ethernet else 0
        while size and int.from_bytes(data[size - 2 : size], "big") in _TAGS:
            size += 4
        link, ip = bytes(data[:size]), bytes(data[size:])
        if not ip or ip[0] >> 4 not in (4, 6) or link[-2:] == b"\x08\x06":
            return None
        return Packet(ip, link, partial, segment)


@contextlib.contextmanager
def wire(*, ethernet: bool, mtu: int = 1500) -> Iterator[Wire]:
    """A host whose only interface leads to the test; addresses HOST, and PEER is on the link."""
    space = netns.fresh()
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, space)
        stack.enter_context(netns.inside(space))
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        stack.callback(os.close, fd)
        mode = (_TAP if ethernet else _TUN) | _NO_PI | _VNET_HDR
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"wire", mode))

        netns.write_sysctls(space, _PATIENT)

        async def up() -> None:
            host = await netns.open_host(space)
            index = netns.ifindex(space, "wire")
            await host.link("set", index=index, mtu=mtu)
            with netns.inside(space), socket.socket() as any_socket:
                # Whoever PEER is, it has the interface's own hardware address.
                request = struct.pack("16sH22x", b"wire", 0)
                flags = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)[16:18]
                (value,) = struct.unpack("H", flags)
                fcntl.ioctl(
                    any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"wire", value | _IFF_NOARP)
                )
            await netns.bring_up(host, index, HOST[4], HOST[6])
            host.close()

        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, up()).result()
        raw = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        raw.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        raw.bind(("wire", 0))
        yield Wire(fd, raw, ethernet)


_KEPT: dict[tuple[object, ...], Compiled] = {}


class _Kept(Compiled):
    def close(self) -> None:
        """It is for the next one, too."""


def _matters(flag: str, text: str) -> bool:
    """Whether a source is another one with another value of a macro."""
    name = flag.removeprefix("-D").partition("=")[0]
    return name in text or name.startswith("HOOK")


def _disclosed(flag: str, secrets: Mapping[str, str]) -> str:
    """The flag, with a known value if it defines a secret."""
    name = flag.removeprefix("-D").partition("=")[0]
    return f"-D{name}={secrets[name]}" if name in secrets else flag


class Frugal:
    """A compiler that compiles the same only once, with known secrets."""

    def __init__(self, compiler: Compiler, secrets: Mapping[str, str] = SECRETS) -> None:
        self._compiler = compiler
        self._secrets = secrets

    def compile(self, source: str, prog_type: ProgType, **more: Any) -> Compiled:
        text = source + "".join((more.get("headers") or {}).values())
        more["cflags"] = [_disclosed(flag, self._secrets) for flag in more["cflags"]]
        macros = tuple(flag for flag in more["cflags"] if _matters(flag, text))
        key = (source, prog_type, macros)
        if key not in _KEPT:
            _KEPT[key] = self._compiler.compile(source, prog_type, **more)
        one = _KEPT[key]
        return _Kept(one.name, one.programs, one.functions, one.maps, one.diagnostics, one.seconds)


def attach(point: InterfaceHook) -> None:
    point.attach()


class Tracing:
    """A path probe on an interface, polled by nobody but the test."""

    def __init__(
        self,
        compiler: Compiler,
        name: str,
        options: PathOptions,
        hook: Hook = Hook.TC_INGRESS,
        secrets: Mapping[str, str] = SECRETS,
    ) -> None:
        self.options = options
        self.hooks = Hooks(attach)
        frugal = cast(Compiler, Frugal(compiler, secrets))
        self.probe = PathProbe(frugal, find(name), hook, self.hooks, options)

    def force(self, *hops: int) -> None:
        """Have each packet to whatever is traced cause a probe, to one of these hops in turn.

        Until the next `rows`, when that is decided again.
        """
        for target in self.probe._targets:
            kernel = target._kernel
            kernel["interval_ns"] = kernel["next_ns"] = kernel["round"] = 0
            kernel["asked"] = kernel["done"]
            kernel["live"] = sum(1 << hop for hop in hops)

    def sequence(self, destination: str) -> int:
        """Number of the next probe to it."""
        (target,) = (t for t in self.probe._targets if t.summary().destination == destination)
        return probe_numbers(target.sequence, 1)[0]

    def rows(self) -> Array:
        """Rows of the probes since the last call, dtype HOP."""
        self.probe.export()
        return self.probe.latest[0].rows

    def close(self) -> None:
        self.probe.close()


def tracing_options(
    guard: Guard = Guard.DISCARD, order: Order = Order.PROBE, **more: Any
) -> PathOptions:
    return PathOptions(rate=100_000, guard=guard, order=order, timeout=0.05, **more)
