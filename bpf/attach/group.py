"""Several interfaces watched as one: `eth0,eth1`, `eth*`, `any`.

All of them share each probe's programs and maps. A packet counts at the first of their hooks that
it passes, and a bit of `tc_index` tells the later ones (chain.py). A pattern takes the interfaces
where packets come into the host and leave it, not those above them: there each packet would pass
one more hook for nothing.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter

from bpf.attach import interface as interfaces
from bpf.attach import rtnetlink
from bpf.attach.interface import LOOPBACK, WITH_ETHERNET_HEADER, Interface
from bpf.attach.rtnetlink import LinkInfo
from bpf.attach.spaces import Space, entered, every, here
from bpf.errors import UsageError

ANY = "any"
EVERYWHERE = "@all"
"""End of a text that means the interfaces of all network namespaces."""
ABOVE = frozenset((
    "bridge", "bond", "team", "vlan", "macsec", "vrf", "hsr", "batadv", "openvswitch", "ifb",
    "rmnet", "vxlan", "geneve", "gre", "gretap", "ip6gre", "ip6gretap", "erspan", "ip6erspan",
    "ipip", "sit", "ip6tnl", "vti", "vti6", "xfrm", "wireguard", "bareudp", "gtp", "amt", "ovpn",
))  # fmt: skip
"""Kinds of interfaces whose packets also pass another interface of the host, unchanged or in a
tunnel. Patterns leave them out."""
_INSIDE = ("veth", "netkit", "tun")
"""Kinds whose other end is a container or a guest, unless the interface has an address or a
default route."""
_WITH_IP = WITH_ETHERNET_HEADER | {512, 519, 0xFFFE}
"""Hardware types that carry IP: also ARPHRD_PPP, ARPHRD_RAWIP and ARPHRD_NONE."""
_PATTERN = re.compile(r"[*?\[]")
_BITS = range(15, 7, -1)
"""Bits of `tc_index` that mark packets. Cilium uses lower ones, as does GRED."""
_MOST = 0xFFFF
"""Most numbers of interfaces; the key of a flow has 16 bits for them."""
NAME_SIZE = 16
"""Bytes of a name, and most of them: IFNAMSIZ of linux/if.h."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An interface of a group."""

    slot: int
    """Its number, from 1."""
    interface: Interface
    """Its name has the label of a namespace that is not the run's own: `eth0@web`."""
    is_loopback: bool
    space: Space


@dataclass(slots=True, eq=False)
class InterfaceGroup(Interface):
    """Interfaces that share programs and maps. `name` is the text of the user.

    Its members change as `HookWatch` follows them.
    """

    bit: int = 0
    """The bit of `tc_index` that marks packets as counted by this run."""
    members: dict[tuple[int, int], GroupMember] = field(default_factory=dict)
    """By the namespace's inode and the interface's index."""
    names: bytearray = field(default_factory=lambda: bytearray(NAME_SIZE * (_MOST + 1)))
    """Names by slot, padded with zeros; a slot keeps its name until another interface gets it."""
    inside: bytearray = field(default_factory=lambda: bytearray(_MOST + 1))
    """By slot: whether the other end is a container or a guest of this host. There a flow has
    the direction of the other end."""
    _claim: socket.socket | None = None
    _next: int = 0

    @classmethod
    def of(cls, name: str) -> InterfaceGroup:
        """Return a group by its text. Raises UsageError if it names an unknown interface."""
        for part in _parts(name):
            if not _is_pattern(part) and not name.endswith(EVERYWHERE):
                interfaces.find(part)
        group = cls(name, -1, ethernet=True)
        group.renew()
        return group

    def claim(self) -> None:
        """Reserve a bit that no other run of this network namespace uses, until the process ends.

        Raises UsageError if all are in use.
        """
        for bit in _BITS:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                opened.bind(f"\0probedeck/tc_index/{bit}")
            except OSError:
                opened.close()
                continue
            self._claim, self.bit = opened, bit
            return
        raise UsageError(
            f"{len(_BITS)} runs on several interfaces are going on here already",
            hint="end one of them, or give -i NAME with one interface",
        )

    def renew(self) -> tuple[Sequence[GroupMember], Sequence[GroupMember]]:
        """Compare with the present interfaces; return the members that joined and left.

        Raises OSError if the kernel does not tell.
        """
        wanted = dict(self._wanted())
        left = [self.members.pop(key) for key in self.members.keys() - wanted.keys()]
        for key, member in self.members.items():
            member.interface.name = self._name(member.slot, *wanted[key])
        joined = []
        for space, links in itertools.groupby(wanted.values(), itemgetter(0)):
            with suppress(OSError), entered(space):
                own = rtnetlink.uplinks() | rtnetlink.addressed()
                for _, link in links:
                    key = space.inode, link.index
                    if key not in self.members:
                        joined.append(self._join(space, link))
                    is_guest = link.kind in _INSIDE and link.hardware in WITH_ETHERNET_HEADER
                    self.inside[self.members[key].slot] = is_guest and link.index not in own
        return joined, left

    def _wanted(self) -> Iterator[tuple[tuple[int, int], tuple[Space, LinkInfo]]]:
        for space in every() if self.is_everywhere else (here(),):
            try:
                with entered(space):
                    links = rtnetlink.links()
            except OSError:
                if not space.path:
                    raise
                continue  # The namespace has ended.
            for link in filter(self._takes, links):
                yield (space.inode, link.index), (space, link)

    def _takes(self, link: LinkInfo) -> bool:
        if link.hardware not in _WITH_IP:
            return False
        parts = _parts(self.name)
        if link.name in parts:
            return True
        return link.kind not in ABOVE and any(
            part == ANY or fnmatch.fnmatchcase(link.name, part)
            for part in parts
            if _is_pattern(part)
        )

    def _join(self, space: Space, link: LinkInfo) -> GroupMember:
        used = {member.slot for member in self.members.values()}
        slots = itertools.chain(range(self._next + 1, _MOST + 1), range(1, _MOST + 1))
        slot = self._next = next(slot for slot in slots if slot not in used)
        ethernet = link.hardware in WITH_ETHERNET_HEADER
        name = self._name(slot, space, link)
        member = self.members[space.inode, link.index] = GroupMember(
            slot, Interface(name, link.index, ethernet), link.hardware == LOOPBACK, space
        )
        return member

    def _name(self, slot: int, space: Space, link: LinkInfo) -> str:
        """Give a slot its name, and return that. It is cut where it is too long, and its end is
        the slot's number if another member has that name."""
        name = f"{link.name}@{space.label}" if space.label else link.name
        at, raw = slot * NAME_SIZE, name.encode(errors="replace")[:NAME_SIZE]
        taken = {each.interface.name for each in self.members.values() if each.slot != slot}
        if raw.decode(errors="replace") in taken:
            end = f"~{slot}".encode()
            raw = raw[: NAME_SIZE - len(end)] + end
        self.names[at : at + NAME_SIZE] = raw.ljust(NAME_SIZE, b"\0")
        return raw.decode(errors="replace")

    def name_of(self, slot: int) -> str:
        """Return the name of the interface that had a slot last."""
        return self.names[slot * NAME_SIZE :][:NAME_SIZE].rstrip(b"\0").decode(errors="replace")

    @property
    def is_everywhere(self) -> bool:
        """Whether it takes interfaces of all network namespaces."""
        return self.name.endswith(EVERYWHERE)

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(index for _, index in self.members)

    def is_up(self) -> bool:
        return True

    def packets(self) -> tuple[int, int]:
        both = [member.interface.packets() for member in tuple(self.members.values())]
        return sum(received for received, _ in both), sum(sent for _, sent in both)

    def name_now(self) -> str:
        return self.name


def find(name: str) -> Interface:
    """Return an interface, or a group for a list, a pattern or `any`.

    Raises UsageError with the nearest name if one is unknown.
    """
    return InterfaceGroup.of(name) if is_group(name) else interfaces.find(name)


def is_group(name: str) -> bool:
    """Whether a text means several interfaces, even if there is only one at the moment."""
    several = len(_parts(name)) > 1 or name.endswith(EVERYWHERE)
    return several or any(map(_is_pattern, _parts(name)))


def _parts(name: str) -> list[str]:
    return name.removesuffix(EVERYWHERE).split(",")


def _is_pattern(part: str) -> bool:
    return part == ANY or _PATTERN.search(part) is not None
