"""The kernel's route to an address (rtnetlink(7)), in the calling thread's network namespace."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from bpf.attach import rtnetlink

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
    found = rtnetlink.attributes(reply[_ROUTE.size :])
    ifindex = int.from_bytes(found.get(_RTA_OIF, b""), "little")
    return Route(_ROUTE.unpack_from(reply)[7], ifindex)


def network(address: str) -> tuple[str, bool]:
    """Return the prefix of the route to an address, and whether no router stands before it.

    Raises OSError as `lookup`.
    """
    packed = ipaddress.ip_address(address).packed
    reply = _ask(packed, _FIB_MATCH)
    found = rtnetlink.attributes(reply[_ROUTE.size :])
    bits = _ROUTE.unpack_from(reply)[1]
    whole = ipaddress.ip_network((found.get(_RTA_DST, bytes(len(packed))), bits), strict=False)
    return str(whole), not found.keys() & _ROUTED


def _ask(packed: bytes, flags: int = 0) -> bytes:
    """Return the kernel's answer about the route to an address of 4 or 16 bytes."""
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    body = _ROUTE.pack(family, len(packed) * 8, 0, 0, 0, 0, 0, 0, flags)
    body += rtnetlink.attribute(_RTA_DST, packed)
    return next(rtnetlink.request(socket.NETLINK_ROUTE, _GETROUTE, body))


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


def _chain(ifindex: int, following: Callable[[rtnetlink.LinkInfo], int]) -> set[int]:
    """Return an interface and those that follow it."""
    found: set[int] = set()
    while ifindex and ifindex not in found:
        found.add(ifindex)
        try:
            ifindex = following(rtnetlink.link(ifindex))
        except OSError:
            break  # it has gone
    return found
