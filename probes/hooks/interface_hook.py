"""One hook of an interface, or of several as one: the chain of its probes, and its attachment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain, takewhile

from bpf.attach import order
from bpf.attach.attachment import Attachment, Hook, attach
from bpf.attach.chain import Chain
from bpf.attach.group import GroupMember, InterfaceGroup
from bpf.attach.ingress import HookChoice
from bpf.attach.interface import AnyHook, EventHook, Interface
from bpf.attach.spaces import entered
from bpf.errors import ProbedeckError
from bpf.syscall import ProgInfo, opened, prog_fd_by_id, prog_info
from probes.snapshot import WAITS, HookStatus

_LOOKS = 16
"""Interfaces of a group whose programs one look lists."""


class InterfaceHook:
    """One hook of one interface, or an event's. Packets pass it even if its chain is empty."""

    shared: Mapping[str, int] = {}

    def __init__(
        self, interface: Interface, hook: AnyHook, choice: HookChoice | None = None
    ) -> None:
        """`choice` has the reason for the hook."""
        self.interface = interface
        self.hook = hook
        self.reason = choice.reason if choice else ""
        self.auto = choice is not None and choice.auto
        """Whether TC may replace it."""
        self.chain = self._chain()
        self.macros = macros_of(interface, self.hook)
        self.program_id = self.chain.info().id
        self.before: tuple[str, ...] = ()
        """Programs of others that run first, as found by `look`."""
        self.removed = False
        """Whether another process detached the program."""
        self.attachment: Attachment | None = None
        """None before `attach`: until then only PROG_TEST_RUN brings packets."""
        self.waits = False
        """Whether it is attached when its interface returns."""
        self.refusal = ""
        """Why the interface that returned does not take it yet."""
        self.users = 0
        """Number of users; `Hooks` counts them."""

    def _chain(self) -> Chain:
        return Chain(self.hook.prog_type, self.hook.attach_type)

    def attach(self, *, by_link: bool = True) -> None:
        """Attach the chain to the interface. Raises as bpf.attach.attachment.attach does."""
        generic = not self.auto
        self.attachment = attach(
            self.hook, self.chain.fd, self.interface, by_link=by_link, generic=generic
        )
        self.waits, self.refusal = False, ""

    @property
    def mode(self) -> str:
        if self.waits:
            return WAITS
        if self.removed:
            return "removed"
        return self.attachment.mode if self.attachment else "not attached"

    @property
    def status(self) -> HookStatus:
        note = self.attachment.note if self.attachment else ""
        reason = "; ".join(filter(None, (self.reason, note, self.refusal)))
        return HookStatus(self.interface.name, self.hook.value, self.mode, reason, self.before)

    def info(self) -> ProgInfo:
        """Return identity and statistics of the chain."""
        return self.chain.info()

    def own_programs(self) -> Iterable[int]:
        """Return the ids of its attached programs."""
        return (self.program_id,)

    def look(self, own: set[int]) -> bool:
        """List the programs that run before this one; return whether the list changed.

        `own` are the ids of this process's programs. No program keeps events from others.
        """
        if isinstance(self.hook, EventHook):
            return False
        try:
            found = order.on_hook(self.hook, self.interface.index)
        except OSError:
            return False  # The interface is gone, and pollers report that.
        known = (self.before, self.removed)
        self.removed = self.program_id not in [program.id for program in found]
        earlier = takewhile(lambda program: program.id != self.program_id, found)
        others = tuple(str(program) for program in earlier if program.id not in own)
        self.before = () if self.removed else others
        return (self.before, self.removed) != known

    def detach(self, *, waits: bool = False) -> None:
        """Detach it, for good or until its interface returns."""
        self.waits = waits and (self.waits or self.attachment is not None)
        if self.attachment:
            self.attachment.close()
            self.attachment = None

    def close(self) -> None:
        """Detach an empty hook."""
        self.detach()
        self.chain.close()


class GroupHook(InterfaceHook):
    """One hook of several interfaces: a chain, and a dispatcher on each of them."""

    interface: InterfaceGroup
    hook: Hook

    def __init__(self, interface: InterfaceGroup, hook: Hook, choice: HookChoice | None) -> None:
        self._by_link = True
        self._attached: dict[int, tuple[int, Attachment]] = {}
        """By slot: the id of the dispatcher, and its attachment."""
        self._others: dict[int, tuple[str, ...]] = {}
        """By slot: the programs before ours, as `before`."""
        self._turn = 0
        super().__init__(interface, hook, choice)

    def _chain(self) -> Chain:
        return Chain(self.hook.prog_type, gated=True)

    def attach(self, *, by_link: bool = True) -> None:
        """Attach it to all interfaces. Raises as bpf.attach.attachment.attach does."""
        self._by_link = by_link
        refusal: ProbedeckError | None = None
        for member in self._members():
            try:
                self.join(member)
            except ProbedeckError as error:
                refusal = error
        if refusal and not self._attached:
            raise refusal
        self.tell()
        self.attachment = Attachment("tcx" if by_link else "clsact", self._leave_all)

    def _members(self) -> list[GroupMember]:
        leaves = self.hook is Hook.TC_EGRESS
        members = tuple(self.interface.members.values())
        return [each for each in members if not (leaves and each.is_loopback)]

    def join(self, member: GroupMember) -> None:
        """Attach it to one more interface. Packets on loopback count when they come in."""
        if member not in self._members():
            return
        fd = self.chain.dispatcher(
            member.slot, self.interface.bit, ethernet=member.interface.ethernet
        )
        # Its namespace may have ended.
        with opened(fd), suppress(OSError), entered(member.space):
            attached = attach(self.hook, fd, member.interface, by_link=self._by_link)
            self._attached[member.slot] = prog_info(fd).id, attached

    def leave(self, member: GroupMember) -> None:
        """Detach it from an interface, which may be gone."""
        self._others.pop(member.slot, None)
        if attached := self._attached.pop(member.slot, None):
            attached[1].close()

    def _leave_all(self) -> None:
        while self._attached:
            self._attached.popitem()[1][1].close()

    def tell(self) -> None:
        """Renew the reason of the status, which each window asks for."""
        members = self._members()
        lacking = [each.interface.name for each in members if each.slot not in self._attached]
        self.reason = f"on {len(self._attached)} of {len(members)} interfaces"
        if lacking:
            self.reason += f": not on {', '.join(lacking)}"

    def info(self) -> ProgInfo:
        """As of one interface; time and runs are the sums of the dispatchers."""
        time_ns = runs = 0
        for program_id in self.own_programs():
            with suppress(OSError), opened(prog_fd_by_id(program_id)) as fd:
                each = prog_info(fd)
                time_ns, runs = time_ns + each.run_time_ns, runs + each.run_count
        return replace(self.chain.info(), run_time_ns=time_ns, run_count=runs)

    def own_programs(self) -> Iterable[int]:
        return [program_id for program_id, _ in tuple(self._attached.values())]

    def look(self, own: set[int]) -> bool:
        """As for one interface, for the next few of them, so the cost of a look is bounded."""
        members = self._members()
        for at in range(min(len(members), _LOOKS)):
            member = members[(self._turn + at) % len(members)]
            # The interface is gone, or ours is removed there.
            with suppress(OSError, ValueError, KeyError), entered(member.space):
                found = order.on_hook(self.hook, member.interface.index)
                ids = [program.id for program in found]
                earlier = found[: ids.index(self._attached[member.slot][0])]
                name = member.interface.name
                self._others[member.slot] = tuple(
                    f"on {name}: {program}" for program in earlier if program.id not in own
                )
        self._turn += _LOOKS
        known, self.before = self.before, tuple(chain.from_iterable(self._others.values()))
        return known != self.before


def macros_of(interface: Interface, hook: AnyHook) -> dict[str, int | str]:
    """Return the macros for sources of a hook."""
    several = {"INTERFACES": 1} if isinstance(interface, InterfaceGroup) else {}
    return {hook.macro: 1, "LINK_ETHERNET": int(interface.ethernet), **several}
