"""Read-only netlink requests: an interface's link and the traffic-control filters on it.

The module speaks the protocol itself because importing pyroute2 takes 100 ms. Requests go to the
calling thread's network namespace.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

CLSACT_INGRESS = 0xFFFFFFF2
CLSACT_EGRESS = 0xFFFFFFF3

_HEADER = struct.Struct("IHHII")
_LINK = struct.Struct("BxHiII")
_FILTER = struct.Struct("BxxxiIII")
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_TYPE_MASK = 0x3FFF
_BUFFER = 1 << 18
_TIMEOUT_S = 1

_GETLINK, _GETTFILTER = 18, 46
_IFLA_MASTER, _IFLA_LINKINFO, _IFLA_XDP = 10, 18, 43
_IFLA_INFO_KIND = 1
_IFLA_XDP_IDS = (7, 5, 6, 4)
"""Attributes with a program id: the NIC's, which runs first, native, generic, and any."""
_TCA_KIND, _TCA_OPTIONS, _TCA_CHAIN = 1, 2, 11
_TCA_BPF_NAME, _TCA_BPF_ID = 7, 11


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """The kernel's view of an interface."""

    kind: str
    """Kind of a virtual interface, such as `veth` or `bridge`; empty for hardware and loopback."""
    master: int
    """Index of the bond, team or bridge that owns it; 0 without one."""
    xdp_ids: tuple[int, ...]
    """Ids of its XDP programs: one, and one more if the NIC itself runs one, first."""


@dataclass(frozen=True, slots=True)
class TcFilter:
    """One classifier of a clsact or ingress qdisc."""

    kind: str
    """`bpf`, `u32`, `flower` and so on."""
    priority: int
    protocol: int
    """EtherType in host byte order; ETH_P_ALL is 3."""
    handle: int
    name: str
    """Name that a bpf filter was given; empty for other kinds."""
    program_id: int
    """Id of a bpf filter's program; 0 for other kinds."""


def link(ifindex: int) -> LinkInfo:
    """Return an interface's link. Raises OSError if the interface does not exist."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0)
    reply = next(request(socket.NETLINK_ROUTE, _GETLINK, body))
    found = attributes(reply[_LINK.size :])
    info = attributes(found.get(_IFLA_LINKINFO, b""))
    xdp = attributes(found.get(_IFLA_XDP, b""))
    ids = (_number(xdp.get(key, b"")) for key in _IFLA_XDP_IDS)
    return LinkInfo(
        _text(info.get(_IFLA_INFO_KIND, b"")),
        _number(found.get(_IFLA_MASTER, b"")),
        tuple(dict.fromkeys(filter(None, ids))),
    )


def filters(ifindex: int, parent: int) -> list[TcFilter]:
    """Return the filters of chain 0 below `parent`, in the order in which packets meet them.

    The list is empty if the interface has no such qdisc.
    """
    body = _FILTER.pack(socket.AF_UNSPEC, ifindex, 0, parent, 0)
    found = []
    for reply in request(socket.NETLINK_ROUTE, _GETTFILTER, body, dump=True):
        _, _, handle, _, info = _FILTER.unpack_from(reply)
        fields = attributes(reply[_FILTER.size :])
        # The kernel lists each priority once more, with handle 0.
        if not handle or _number(fields.get(_TCA_CHAIN, b"")):
            continue
        options = attributes(fields.get(_TCA_OPTIONS, b""))
        kind = _text(fields.get(_TCA_KIND, b""))
        is_bpf = kind == "bpf"
        found.append(
            TcFilter(
                kind,
                info >> 16,
                socket.ntohs(info & 0xFFFF),
                handle,
                _text(options.get(_TCA_BPF_NAME, b"")) if is_bpf else "",
                _number(options.get(_TCA_BPF_ID, b"")) if is_bpf else 0,
            )
        )
    return found


def request(family: int, kind: int, body: bytes, *, dump: bool = False) -> Iterator[bytes]:
    """Send one netlink request of a family such as NETLINK_ROUTE; yield each reply's payload.

    Raises OSError with the kernel's error code.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as sock:
        sock.settimeout(_TIMEOUT_S)
        flags = _REQUEST | (_DUMP if dump else 0)
        sock.send(_HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body)
        while True:
            data = sock.recv(_BUFFER)
            at = 0
            while at < len(data):
                length, reply, *_ = _HEADER.unpack_from(data, at)
                payload = data[at + _HEADER.size : at + length]
                if reply == _DONE:
                    return
                if reply == _ERROR:
                    code = -struct.unpack_from("i", payload)[0]
                    raise OSError(code, f"netlink: {os.strerror(code)}")
                yield payload
                at += length + -length % 4
            if not dump:
                return


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """Decode a sequence of attributes: type to value."""
    found = {}
    at = 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("HH", data, at)
        found[kind & _TYPE_MASK] = data[at + 4 : at + length]
        at += max(4, length + -length % 4)
    return found


def _number(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _text(value: bytes) -> str:
    return value.partition(b"\0")[0].decode(errors="replace")
