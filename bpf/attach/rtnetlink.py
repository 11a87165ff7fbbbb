"""Netlink requests: links of interfaces, their queueing disciplines and filters, and routes.

The module speaks the protocol itself because importing pyroute2 takes 100 ms. Requests go to the
calling thread's network namespace.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeVar

from bpf.errors import printable

_Answer = TypeVar("_Answer")
CLSACT_INGRESS = 0xFFFFFFF2
CLSACT_EGRESS = 0xFFFFFFF3

_HEADER = struct.Struct("IHHII")
_LINK = struct.Struct("BxHiII")
_ADDRESS = struct.Struct("BBBBI")
"""struct ifaddrmsg of linux/if_addr.h: family, bits, flags, scope, interface."""
_GLOBAL = 0
"""RT_SCOPE_UNIVERSE of linux/rtnetlink.h."""
_TC = struct.Struct("BxxxiIII")
REQUEST, DUMP = 0x1, 0x300
_DELETE, _CREATE = 0x4, 0x604
"""Flags of changes, which the kernel acknowledges; it creates only what does not exist."""
ERROR, _DONE = 2, 3
"""Types of the message that ends an answer."""
_TYPE_MASK = 0x3FFF
_BUFFER = 1 << 18
_TIMEOUT_S = 1

_CHANGES = 0x1 | 0x10 | 0x100
"""RTMGRP_LINK, RTMGRP_IPV4_IFADDR and RTMGRP_IPV6_IFADDR of linux/rtnetlink.h."""
_GETLINK, _GETADDR, _NEWQDISC, _GETQDISC = 18, 22, 36, 38
_NEWTFILTER, _DELTFILTER, _GETTFILTER = 44, 45, 46
_IFLA_LINK, _IFLA_MASTER, _IFLA_LINKINFO, _IFLA_LINK_NETNSID, _IFLA_XDP = 5, 10, 18, 37, 43
_IFLA_IFNAME, _IFLA_EXT_MASK = 3, 29
_SKIP_STATS = 1 << 3
_IFLA_INFO_KIND = 1
_IFLA_XDP_IDS = (7, 5, 6, 4)
"""Attributes with a program id: the NIC's, which runs first, native, generic, and any."""
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2, _TCA_CHAIN = 1, 2, 7, 11
_TCA_STATS_QUEUE = 3
_TCA_BPF_FD, _TCA_BPF_NAME, _TCA_BPF_FLAGS, _TCA_BPF_ID = 6, 7, 8, 11
_DIRECT_ACTION = 1
_CLSACT_HANDLE, _CLSACT_PARENT = 0xFFFF0000, 0xFFFFFFF1
ETH_P_ALL = 0x0003


@dataclass(frozen=True, slots=True)
class LinkInfo:
    """The kernel's view of an interface."""

    kind: str
    """Kind of a virtual interface, such as `veth` or `bridge`; empty for hardware and loopback."""
    master: int
    """Index of the bond, team or bridge that owns it; 0 without one."""
    xdp_ids: tuple[int, ...]
    """Ids of its XDP programs: one, and one more if the NIC itself runs one, first."""
    lower: int = 0
    """Index of the interface of this namespace below it, as of a VLAN; 0 without one."""
    index: int = 0
    name: str = ""
    hardware: int = 0
    """ARPHRD_* of linux/if_arp.h."""


@dataclass(frozen=True, slots=True)
class TcFilter:
    """One classifier of a clsact or ingress qdisc."""

    kind: str
    """`bpf`, `u32`, `flower` and so on."""
    priority: int
    protocol: int
    """EtherType in host byte order, or ETH_P_ALL."""
    handle: int
    name: str
    """Name that a bpf filter was given; empty for other kinds."""
    program_id: int
    """Id of a bpf filter's program; 0 for other kinds."""


def link(ifindex: int) -> LinkInfo:
    """Return an interface's link. Raises OSError if the interface does not exist."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, ifindex, 0, 0)
    return _link(next(request(socket.NETLINK_ROUTE, _GETLINK, body)))


def links() -> list[LinkInfo]:
    """Return the links of all interfaces."""
    body = _LINK.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
    # Without statistics and virtual functions a link takes a fifth of the bytes.
    body += attribute(_IFLA_EXT_MASK, struct.pack("I", _SKIP_STATS))
    return [_link(reply) for reply in request(socket.NETLINK_ROUTE, _GETLINK, body, DUMP)]


def addressed() -> set[int]:
    """Return the interfaces with an address that is valid beyond their link."""
    replies = request(socket.NETLINK_ROUTE, _GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0), DUMP)
    found = map(_ADDRESS.unpack_from, replies)
    return {index for _, _, _, scope, index in found if scope == _GLOBAL}


def _link(reply: bytes) -> LinkInfo:
    _, hardware, index, _, _ = _LINK.unpack_from(reply)
    found = attributes(reply[_LINK.size :])
    info = attributes(found.get(_IFLA_LINKINFO, b""))
    xdp = attributes(found.get(_IFLA_XDP, b""))
    ids = (_number(xdp.get(key, b"")) for key in _IFLA_XDP_IDS)
    kind = text(info.get(_IFLA_INFO_KIND, b""))
    # The other end of a veth is not below it.
    elsewhere = kind == "veth" or _IFLA_LINK_NETNSID in found
    return LinkInfo(
        kind,
        _number(found.get(_IFLA_MASTER, b"")),
        tuple(dict.fromkeys(filter(None, ids))),
        0 if elsewhere else _number(found.get(_IFLA_LINK, b"")),
        index,
        text(found.get(_IFLA_IFNAME, b"")),
        hardware,
    )


def link_changes() -> socket.socket:
    """Open a socket that becomes readable when an interface of this namespace, or its
    addresses, change."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    opened.bind((0, _CHANGES))
    return opened


def filters(ifindex: int, parent: int) -> list[TcFilter]:
    """Return the filters of chain 0 below `parent`, in the order in which packets meet them.

    The list is empty if the interface has no such qdisc.
    """
    body = _TC.pack(socket.AF_UNSPEC, ifindex, 0, parent, 0)
    found = []
    for reply in request(socket.NETLINK_ROUTE, _GETTFILTER, body, DUMP):
        _, _, handle, _, info = _TC.unpack_from(reply)
        fields = attributes(reply[_TC.size :])
        # The kernel lists each priority once more, with handle 0.
        if not handle or _number(fields.get(_TCA_CHAIN, b"")):
            continue
        options = attributes(fields.get(_TCA_OPTIONS, b""))
        kind = text(fields.get(_TCA_KIND, b""))
        name, program_id = "", 0
        if kind == "bpf":
            name = text(options.get(_TCA_BPF_NAME, b""))
            program_id = _number(options.get(_TCA_BPF_ID, b""))
        protocol = socket.ntohs(info & 0xFFFF)
        found.append(TcFilter(kind, info >> 16, protocol, handle, name, program_id))
    return found


def add_filter(ifindex: int, parent: int, priority: int, handle: int, fd: int, name: str) -> None:
    """Add a direct-action filter of the program `fd` for all protocols. Raises OSError."""
    options = (
        attribute(_TCA_BPF_FD, struct.pack("I", fd))
        + attribute(_TCA_BPF_NAME, name.encode() + b"\0")
        + attribute(_TCA_BPF_FLAGS, struct.pack("I", _DIRECT_ACTION))
    )
    body = _filter(ifindex, parent, priority, handle) + attribute(_TCA_OPTIONS, options)
    list(request(socket.NETLINK_ROUTE, _NEWTFILTER, body, _CREATE))


def delete_filter(ifindex: int, parent: int, priority: int, handle: int) -> None:
    """Delete a bpf filter for all protocols. Raises OSError."""
    body = _filter(ifindex, parent, priority, handle)
    list(request(socket.NETLINK_ROUTE, _DELTFILTER, body, _DELETE))


def _filter(ifindex: int, parent: int, priority: int, handle: int) -> bytes:
    info = priority << 16 | socket.htons(ETH_P_ALL)
    body = _TC.pack(socket.AF_UNSPEC, ifindex, handle, parent, info)
    return body + attribute(_TCA_KIND, b"bpf\0")


def add_clsact(ifindex: int) -> None:
    """Add a clsact qdisc. Raises FileExistsError beside another clsact or ingress qdisc."""
    body = _TC.pack(socket.AF_UNSPEC, ifindex, _CLSACT_HANDLE, _CLSACT_PARENT, 0)
    body += attribute(_TCA_KIND, b"clsact\0")
    list(request(socket.NETLINK_ROUTE, _NEWQDISC, body, _CREATE))


def qdiscs(ifindex: int) -> list[str]:
    """Return the kinds of an interface's queueing disciplines."""
    body = _TC.pack(socket.AF_UNSPEC, ifindex, 0, 0, 0)
    return [
        text(attributes(reply[_TC.size :])[_TCA_KIND])
        for reply in request(socket.NETLINK_ROUTE, _GETQDISC, body, DUMP)
        if _TC.unpack_from(reply)[1] == ifindex
    ]


def backlog(ifindex: int) -> tuple[str, int]:
    """Return the kind of an interface's fullest queueing discipline, and its bytes that wait."""
    body = _TC.pack(socket.AF_UNSPEC, ifindex, 0, 0, 0)
    found: list[tuple[str, int]] = []
    for reply in request(socket.NETLINK_ROUTE, _GETQDISC, body, DUMP):
        fields = attributes(reply[_TC.size :])
        queue = attributes(fields.get(_TCA_STATS2, b"")).get(_TCA_STATS_QUEUE, bytes(8))
        if _TC.unpack_from(reply)[1] == ifindex:
            found.append((text(fields[_TCA_KIND]), _number(queue[4:8])))
    fullest = max([("", 0), *found], key=lambda each: each[1])
    # The first one, the root, has the sum of all. Packets come and go between the two numbers.
    return next((root for root in found[:1] if 2 * root[1] > fullest[1]), fullest)


def request(family: int, kind: int, body: bytes, flags: int = 0) -> Iterator[bytes]:
    """Send one netlink request of a family such as NETLINK_ROUTE; yield each reply's payload.

    Raises OSError with the kernel's error code.
    """
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family) as sock:
        sock.settimeout(_TIMEOUT_S)
        sock.send(message(kind, body, flags))
        while True:
            data = sock.recv(_BUFFER)
            for begin, length, is_last in messages(data):
                if is_last:
                    return
                yield data[begin + _HEADER.size : begin + length]
            if not flags:
                return


def message(kind: int, body: bytes, flags: int, sequence: int = 1) -> bytes:
    return _HEADER.pack(_HEADER.size + len(body), kind, REQUEST | flags, sequence, 0) + body


def messages(data: bytes, sequence: int = 1) -> Iterator[tuple[int, int, bool]]:
    """Yield the messages of a datagram: begin, length, and whether it is the end of the answer.

    The end of a dump may stand behind other messages, and carries its error. Parts of an earlier
    dump that was not read to its end have another `sequence`, and are left out. Raises OSError.
    """
    begin = 0
    while begin + _HEADER.size <= len(data):
        length, kind, _, number, _ = _HEADER.unpack_from(data, begin)
        if length < _HEADER.size or begin + length > len(data):
            raise OSError(errno.EBADMSG, "netlink: a message is cut off")
        if number == sequence:
            is_last = kind in (ERROR, _DONE)
            if is_last and length >= _HEADER.size + 4:
                (code,) = struct.unpack_from("i", data, begin + _HEADER.size)
                if code < 0:
                    raise OSError(-code, f"netlink: {os.strerror(-code)}")
            yield begin, length, is_last
        begin += length + -length % 4


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


def text(value: bytes) -> str:
    """Decode a string that ends with a zero byte."""
    return printable(value.partition(b"\0")[0].decode(errors="replace"))


DEFAULT_ROUTED = ("192.0.2.1", "2001:db8::1")
"""Documentation addresses (RFC 5737, RFC 3849): only a default route leads to them."""
_GETROUTE = 26
_ROUTE = struct.Struct("BBBBBBBBI")
_RTA_DST, _RTA_OIF = 1, 4
_ROUTED = {5, 9, 18}
"""RTA_GATEWAY, RTA_MULTIPATH, RTA_VIA: a router is the next hop."""
_FIB_MATCH = 0x2000
"""RTM_F_FIB_MATCH: the answer is the entry of the table, not one for this address."""


class RouteType(IntEnum):
    """RTN_* of linux/rtnetlink.h."""

    UNICAST = 1
    LOCAL = 2
    BROADCAST = 3
    ANYCAST = 4
    MULTICAST = 5


@dataclass(frozen=True, slots=True)
class Route:
    """A route to one address."""

    type: int
    """RouteType, or a type that it does not name."""
    ifindex: int
    """Interface of sent packets."""


def lookup(address: str) -> Route:
    """Return the route of packets without a source address or a mark.

    Raises OSError if the kernel finds no route: ENETUNREACH, EHOSTUNREACH, EACCES or EINVAL.
    """
    reply = _ask(ipaddress.ip_address(address).packed)
    found = attributes(reply[_ROUTE.size :])
    ifindex = int.from_bytes(found.get(_RTA_OIF, b""), "little")
    return Route(_ROUTE.unpack_from(reply)[7], ifindex)


@lru_cache(512)
def _asked(ask: Callable[[str], Any], name: str, _: int) -> Any:
    return ask(name)


def lately(ask: Callable[[str], _Answer], name: str, now_ns: int) -> _Answer:
    """Return the answer about a name, asked once in ten seconds: routes and links change seldom."""
    found: _Answer = _asked(ask, name, now_ns // 10**10)
    return found


def network(address: str) -> tuple[str, bool]:
    """Return the prefix of the route to an address, and whether no router stands before it.

    Raises OSError as `lookup`.
    """
    packed = ipaddress.ip_address(address).packed
    reply = _ask(packed, _FIB_MATCH)
    found = attributes(reply[_ROUTE.size :])
    bits = _ROUTE.unpack_from(reply)[1]
    whole = ipaddress.ip_network((found.get(_RTA_DST, bytes(len(packed))), bits), strict=False)
    return str(whole), not found.keys() & _ROUTED


def _ask(packed: bytes, flags: int = 0) -> bytes:
    """Return the kernel's answer about the route to an address of 4 or 16 bytes."""
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, flags)
    body += attribute(_RTA_DST, packed)
    return next(request(socket.NETLINK_ROUTE, _GETROUTE, body))


def passes(upper: int, interface: int) -> bool:
    """Whether packets routed over interface `upper` also pass `interface`, or may do so.

    One is a port of the other (bridge, bond, team), or the other's lower interface (VLAN, macvlan).
    """
    ports = _chain(interface, lambda link: link.master)
    below = _chain(upper, lambda link: link.lower)
    return not ports.isdisjoint(below)


def uplinks() -> set[int]:
    """Return the interfaces of the default routes, and those below them."""
    found: set[int] = set()
    for address in DEFAULT_ROUTED:
        with contextlib.suppress(OSError):
            found |= _chain(lookup(address).ifindex, lambda link: link.lower)
    return found


def _chain(ifindex: int, following: Callable[[LinkInfo], int]) -> set[int]:
    """Return an interface and those that follow it."""
    found: set[int] = set()
    while ifindex and ifindex not in found:
        found.add(ifindex)
        try:
            ifindex = following(link(ifindex))
        except OSError:
            break  # it has gone
    return found
