"""What can be traced: addresses, and names that have some."""

from __future__ import annotations

import ipaddress
import socket

from bpf.errors import UsageError
from probes.path.targets import destination_of, text_of


def address(text: str) -> str:
    """An IPv4 or IPv6 address as ipaddress writes it.

    Raises UsageError for what is none, or leads along no path.
    """
    return text_of(destination_of(text))


def check_address(destination: str) -> None:
    """UsageError for an address that `address` refuses; of a name nothing is known yet."""
    if _is_address(destination):
        address(destination)


def addresses(destination: str) -> tuple[str, ...]:
    """Those of a host name, IPv4 and IPv6, each once; or the one that `destination` is.

    Addresses of a name that can't be traced are left out. Raises UsageError, naming `destination`,
    where none is left.
    """
    if _is_address(destination):
        return (address(destination),)
    try:
        # An empty name would be this host; SOCK_DGRAM: each address once, not once a protocol.
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


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
