"""Destinations of path tracing, and the interface of the default route."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Iterable
from contextlib import suppress

from bpf.attach import rtnetlink
from bpf.attach.interface import Interface
from bpf.attach.rtnetlink import RouteType
from bpf.errors import UsageError
from probes.path.targets import destination_of

_NO_HOST: dict[int, str] = {
    RouteType.LOCAL: "it is an address of this host",
    RouteType.BROADCAST: "it is a broadcast address",
    RouteType.ANYCAST: "it is the anycast address of a network's routers",
    RouteType.MULTICAST: "it is not of one host",
}
_OCTAL = re.compile(r"(^|\.)0\d")


def default_interface() -> str:
    """Return the interface of the default route. Raises UsageError without one."""
    for anywhere in rtnetlink.DEFAULT_ROUTED:
        with suppress(OSError):
            if index := rtnetlink.lookup(anywhere).ifindex:
                return socket.if_indextoname(index)
    raise UsageError("there is no default route to choose the interface by", hint="give -i NAME")


def address(text: str) -> str:
    """Return an address in the form of ipaddress. Raises UsageError if no path leads to it."""
    return destination_of(text).text


def check_address(destination: str) -> None:
    """Raise UsageError for an address that cannot be traced. Names are not resolved."""
    if _is_address(destination):
        address(destination)
    _refuse_short(destination)


def addresses(destination: str) -> tuple[str, ...]:
    """Return the traceable addresses of a host name or address. Raises UsageError without any."""
    if _is_address(destination):
        return (address(destination),)
    _refuse_short(destination)
    try:
        # An empty name would be this host. SOCK_DGRAM: one answer an address, not one a protocol.
        answers = socket.getaddrinfo(destination or None, None, type=socket.SOCK_DGRAM)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise UsageError(f"cannot resolve {destination!r}: {reason}") from None
    found: dict[str, None] = {}
    refusal = None
    for *_, where in answers:
        try:
            found[address(str(where[0]))] = None
        except UsageError as error:
            refusal = refusal or error
    if not found and refusal:
        raise UsageError(f"{destination}: {refusal.message}")
    return tuple(found)


def check_routes(destinations: Iterable[str]) -> None:
    """Raise UsageError for an address that is this host's, or of no single host, by the kernel."""
    for destination in destinations:
        try:
            found = rtnetlink.lookup(destination).type
        except OSError:
            continue  # a route may come later
        if reason := _NO_HOST.get(found):
            raise UsageError(f"cannot trace {destination}: {reason}")


def detour(destination: str, interface: Interface) -> str:
    """Say why packets to an address do not leave by an interface; empty if they do."""
    try:
        found = rtnetlink.lookup(destination)
    except OSError as error:
        return f"has no route: {os.strerror(error.errno or 0)}"
    if found.type not in (RouteType.UNICAST, *_NO_HOST):
        return "has no route: the routing table refuses it"
    if not found.ifindex or any(
        rtnetlink.passes(found.ifindex, each) for each in interface.indices
    ):
        return ""
    try:
        other = socket.if_indextoname(found.ifindex)
    except OSError:
        return ""  # it has gone meanwhile
    return f"is routed over {other}, not {interface.name}"


def _refuse_short(text: str) -> None:
    """Raise UsageError for other notations of inet(3), such as `010.1.2.3`, `10.1` or `0xa000001`.

    A resolver would take them for addresses that the user hardly means.
    """
    try:
        meant = socket.inet_ntoa(socket.inet_aton(text))
    except (OSError, ValueError):
        return
    if _is_address(text):
        return
    why = " (a leading 0 makes a number octal)" if _OCTAL.search(text) else ""
    raise UsageError(
        f"cannot trace {text}: it would be {meant}{why}",
        hint="write four decimal numbers without leading zeros",
    )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
