"""Network interfaces of this network namespace, by ioctl (netdevice(7))."""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass, field
from pathlib import Path

from bpf.errors import UsageError, did_you_mean, printable

_SIOCGIFFLAGS = 0x8913
_SIOCGIFHWADDR = 0x8927
_IFF_UP = 0x1
LOOPBACK = 772
"""ARPHRD_LOOPBACK of linux/if_arp.h."""
WITH_ETHERNET_HEADER = frozenset((1, LOOPBACK))
"""Also ARPHRD_ETHER."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Interface:
    """A network interface. Its name, index and state change as `HookWatch` follows it."""

    name: str
    index: int
    ethernet: bool
    """Whether its frames begin with an Ethernet header; False for tun, WireGuard, PPP."""
    up: bool | None = True
    """As last followed; None: it is away, and its probes wait for its return."""
    former: set[str] = field(default_factory=set)
    """Names before it was renamed."""

    def __post_init__(self) -> None:
        self.name = printable(self.name)

    @property
    def indices(self) -> tuple[int, ...]:
        """Its index, or the indices of the interfaces of a group."""
        return (self.index,)

    def is_up(self) -> bool:
        """Whether the interface exists and is up."""
        try:
            flags: int = struct.unpack_from("H", _ioctl(_SIOCGIFFLAGS, self.name_now()), 16)[0]
        except OSError:
            return False
        return bool(flags & _IFF_UP)

    def packets(self) -> tuple[int, int]:
        """Return the packets received and sent so far; zeros if the interface is gone."""
        name = self.name_now()
        # This thread's network namespace may differ from the process's.
        for line in Path("/proc/thread-self/net/dev").read_text(encoding="utf-8").splitlines():
            of, _, counts = line.partition(":")
            if of.strip() == name:
                fields = counts.split()
                return int(fields[1]), int(fields[9])
        return 0, 0

    def name_now(self) -> str:
        """Ask the kernel for its present name; empty if the interface is gone."""
        try:
            return socket.if_indextoname(self.index)
        except OSError:
            return ""


def find(name: str) -> Interface:
    """Return an interface by name. Raises UsageError with the nearest name if it is unknown."""
    try:
        index = socket.if_nametoindex(name)
        hardware = struct.unpack_from("H", _ioctl(_SIOCGIFHWADDR, name), 16)[0]
    except (OSError, ValueError):
        names = [n for _, n in socket.if_nameindex()]
        text = f"no interface {name!r}" if name else "the interface is missing: give its name"
        raise UsageError(text, hint=did_you_mean(name, names)) from None
    return Interface(name, index, hardware in WITH_ETHERNET_HEADER)


def _ioctl(request: int, name: str) -> bytes:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return fcntl.ioctl(sock, request, struct.pack("16s24x", name.encode()[:15]))
