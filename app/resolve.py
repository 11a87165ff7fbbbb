"""Destinations of path tracing: addresses and host names."""

from __future__ import annotations

import ipaddress
import re
import socket

from bpf.errors import UsageError
from probes.path.targets import destination_of, text_of

_OCTAL = re.compile(r"(^|\.)0\d")


def address(text: str) -> str:
    """Return an address in the form of ipaddress. Raises UsageError if no path leads to it."""
    return text_of(destination_of(text))


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
