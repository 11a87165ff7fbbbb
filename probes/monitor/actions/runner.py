"""Begins and ends the actions of policies, and tells what they did.

An action begins with its policy. It ends with it, after its time, beyond its share of the traffic,
or when an operator stops all. Then it begins again only when its policy does, and a stopped one
only if the policy is set again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from bpf.attach import interface as interfaces
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Hook, Interface
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import counted, duration, percent
from probes.filter.conjunction import Conjunction, Dimension, NumberSet, PrefixSet
from probes.hooks.interface_hook import InterfaceHook
from probes.monitor.actions.action import USUAL_SHARE, ActionKind, PacketAction
from probes.monitor.actions.control_connections import control_connections
from probes.monitor.actions.programs import MOST_ACTIONS, ActionCounts, ActionPrograms
from probes.monitor.actions.state import ActionInfo, ActionState
from probes.monitor.options import Input, MonitorOptions
from probes.monitor.selection import conjunctions_of
from probes.monitor.state import PROBE
from probes.snapshot import Event

if TYPE_CHECKING:
    from probes.monitor.finding import Finding
    from probes.monitor.policy import Policy

_OF_ADDRESSES = re.compile(r"(?:^| )src:[^ /]+(?: |$)")
"""A filter of senders, and not of a network."""
_LEAST = 100
"""Packets of a window below which a share says nothing."""
_MOST_PORTS = 4096
_LEAST_PREFIX = 8
PERMISSION = "actions need --allow-actions"


@dataclass(slots=True)
class _Entry:
    """The action of one policy."""

    policy: Policy
    action: PacketAction
    target: Interface | None
    """The interface that gets copies."""
    dry: bool
    filters: Sequence[str] = ()
    select: Sequence[Conjunction] = ()
    """The selection by `filters`, without the packets of trusted hosts."""
    most: float = USUAL_SHARE
    """Largest share of the traffic, 0 to 1."""
    is_wanted: bool = False
    """Whether its policy was active at the last look."""
    number: int = -1
    """Its selection; -1 while it does not run."""
    begun_ns: int = 0
    until_ns: int = 0
    cause: str = ""
    now: ActionCounts = field(default_factory=ActionCounts)
    """Since the begin."""
    window: ActionCounts = field(default_factory=ActionCounts)
    """Of the last window."""
    told: ActionCounts = field(default_factory=ActionCounts)
    """Since the begin, up to the last window."""
    untold: int = 0
    """Packets of a run that ended since the last window."""

    @property
    def words(self) -> str:
        where = "outgoing" if self.action.outgoing else "incoming"
        return f"{where} packets of {' or '.join(self.filters)}"

    def aim(self, filters: Sequence[str]) -> None:
        """Act on the packets that pass one of `filters`. Raises ProbedeckError."""
        end = "dst" if self.action.outgoing else "src"
        explicit = all(map(_is_narrow, conjunctions_of(filters)))
        self.select = conjunctions_of(self.policy.without_trusted(filters, end))
        self.most = self.action.share or (1.0 if explicit else USUAL_SHARE)
        self.filters = filters

    def blame(self, finding: Finding) -> None:
        """Act on the culprit of a finding. Raises ProbedeckError if nobody stands out."""
        if finding.outgoing or not finding.filter:
            raise UsageError("who is unknown")
        if self.action.kind is ActionKind.DROP and not _OF_ADDRESSES.search(finding.filter):
            raise UsageError("no sender stands out", hint="limit acts on packets to one receiver")
        self.aim([f"({each}) {finding.filter}" for each in self.policy.select] or [finding.filter])
        if self.most == USUAL_SHARE and not self.action.share:
            raise UsageError("no address and no port stands out")


class Actions:
    """The actions of a monitor's policies. For one thread at a time."""

    def __init__(
        self, programs: ActionPrograms, point: InterfaceHook, options: MonitorOptions,
        utc_ns: Callable[[int], int],
    ) -> None:  # fmt: skip
        """`point` is the monitor's hook; `utc_ns` converts CLOCK_MONOTONIC."""
        self._programs = programs
        self._interface = point.interface
        self._hook = point.hook
        self._options = options
        self._utc_ns = utc_ns
        self._entries: dict[str, _Entry] = {}
        self._events: list[Event] = []

    def prepare(self, policy: Policy) -> None:
        """Check the action of a policy, and load its program. Raises ProbedeckError."""
        if (action := policy.action) is None or self._is_of_capture:
            return
        if self._options.input is not Input.REGULAR:
            raise UsageError(f"actions are for regular traffic, not for {self._options.input}")
        others = self._entries.keys() - {policy.name}
        if len(others) >= MOST_ACTIONS:
            raise UsageError(f"at most {MOST_ACTIONS} policies can have actions")
        if action.kind is ActionKind.MIRROR:
            target = interfaces.find(action.interface)
            watched = [self._interface]
            if isinstance(self._interface, InterfaceGroup):
                watched = [each.interface for each in self._interface.members.values()]
            if target.index in [each.index for each in watched]:
                hint = "name another interface"
                raise UsageError(f"{target.name} would mirror to itself", hint=hint)
            if target.ethernet != self._interface.ethernet:
                raise UsageError(f"{target.name} has other headers than {self._interface.name}")
            if self._hook is Hook.XDP and not action.outgoing:
                raise UsageError("XDP mirrors no packet", hint="give --ingress tc")
        self._programs.load(action.outgoing)

    def set(self, policy: Policy) -> None:
        """Take the action of a policy that was prepared; an older one of its name ends."""
        self.remove(policy.name)
        if (action := policy.action) is None or self._is_of_capture:
            return
        dry = action.dry or not self._options.allow_actions
        target = interfaces.find(action.interface) if action.interface else None
        entry = self._entries[policy.name] = _Entry(policy, action, target, dry)
        entry.aim(policy.select)
        if dry and not action.dry:
            text = f"policy {policy.name} only counts the packets that it would act on"
            self._events.append(Event.now("warning", PROBE, f"{text}: {PERMISSION}"))

    def remove(self, name: str) -> None:
        """End the action of a policy, and forget it."""
        if entry := self._entries.get(name):
            self._end(entry, "the policy was changed or removed")
            del self._entries[name]

    def follow(self, active: Collection[str]) -> None:
        """Begin the actions of policies that became active, and end all other actions."""
        for name, entry in self._entries.items():
            was_wanted, entry.is_wanted = entry.is_wanted, name in active
            begins = entry.is_wanted and not was_wanted and entry.cause != _STOPPED
            if begins and not entry.action.culprit:
                self._begin(entry)
            elif was_wanted and not entry.is_wanted:
                self._end(entry, "the policy ended")

    def blame(self, findings: Mapping[str, Finding]) -> None:
        """Begin the actions on culprits of policies that became active, by their findings."""
        for name, finding in findings.items():
            entry = self._entries.get(name)
            if entry and entry.action.culprit and entry.cause != _STOPPED:
                try:
                    entry.blame(finding)
                    self._begin(entry)
                except ProbedeckError as error:
                    self._fail(entry, error)

    def end_window(self) -> None:
        """Count the packets of a window, and end actions beyond their limits."""
        now_ns = time.monotonic_ns()
        running = {each.number: each for each in self._entries.values() if each.number >= 0}
        if running:
            self._programs.spare(control_connections())
            for number, counts in self._programs.counts().items():
                running[number].now = counts
        for entry in self._entries.values():
            window = entry.window = entry.now - entry.told
            entry.told = entry.now
            if entry.number < 0:
                continue
            if now_ns >= entry.until_ns:
                self._end(entry, "its time is over")
            elif window.packets >= _LEAST and window.share > entry.most:
                share, most = percent(window.share), percent(entry.most)
                self._end(entry, f"{share} of a window is more than its share of {most}")

    def acted(self) -> Mapping[str, int]:
        """Return the packets of the last window by policy, including runs that ended in it."""
        found = {name: each.window.packets + each.untold for name, each in self._entries.items()}
        for entry in self._entries.values():
            entry.untold = 0
        return found

    def stop(self, cause: str = "") -> int:
        """End all actions until their policies are set again. Returns the number that ran.

        Without a `cause` an operator stops them.
        """
        running = sum(entry.number >= 0 for entry in self._entries.values())
        for entry in self._entries.values():
            self._end(entry, cause or _STOPPED)
            entry.cause = _STOPPED
        return running

    def resume(self, name: str) -> None:
        """Let the action of a policy begin again that an operator activates after a stop."""
        if (entry := self._entries.get(name)) and entry.cause == _STOPPED:
            entry.cause, entry.is_wanted = "", False

    def info(self, name: str) -> ActionInfo | None:
        """Return the state of a policy's action; None without one."""
        if (entry := self._entries.get(name)) is None:
            return None
        runs, now = entry.number >= 0, entry.now
        state = ActionState.WAITS
        if runs:
            state = ActionState.DRY if entry.dry else ActionState.ACTS
        elif entry.is_wanted or entry.cause == _STOPPED:
            state = ActionState.ENDED
        return ActionInfo(
            state, entry.dry, entry.cause, self._utc_ns(entry.until_ns) if runs else 0,
            now.packets, now.bytes, now.spared, now.failed, entry.window.share,
        )  # fmt: skip

    def events(self) -> Sequence[Event]:
        """Return the events since the last call."""
        found, self._events = self._events, []
        return found

    def close(self) -> None:
        """End all actions."""
        self._programs.close()

    @property
    def _is_of_capture(self) -> bool:
        """Whether no interface has the packets."""
        return not self._interface.index

    def _begin(self, entry: _Entry) -> None:
        name, action = entry.policy.name, entry.action
        entry.begun_ns = time.monotonic_ns()
        entry.until_ns = entry.begun_ns + round(action.seconds * 1e9)
        entry.now = entry.told = entry.window = ActionCounts()
        entry.cause = ""
        try:
            self._programs.spare(control_connections())
            target = entry.target.index if entry.target else 0
            in_kernel = replace(action, dry=entry.dry)
            entry.number = self._programs.begin(in_kernel, entry.select, entry.until_ns, target)
        except ProbedeckError as error:
            self._fail(entry, error)
            return
        deed = f"is a dry run: it {action.deed}" if entry.dry else action.deed
        text = f"policy {name} {deed}: {entry.words}, for {duration(action.seconds)} at most"
        self._events.append(Event.now("warning", PROBE, text, _subject(name), "begin"))

    def _fail(self, entry: _Entry, error: ProbedeckError) -> None:
        name, entry.cause = entry.policy.name, error.message
        text = f"policy {name} does not act: {error}"
        self._events.append(Event.now("error", PROBE, text, _subject(name)))

    def _end(self, entry: _Entry, cause: str) -> None:
        if entry.number < 0:
            return
        entry.now = self._programs.end(entry.number)
        entry.number, entry.cause = -1, cause
        entry.untold += (entry.now - entry.told).packets
        entry.told = entry.now
        now, name, action = entry.now, entry.policy.name, entry.action
        would = "would have " if entry.dry else ""
        seconds = (time.monotonic_ns() - entry.begun_ns) / 1e9
        parts = [
            f"policy {name} {would}{action.done} {counted(now.packets, 'packet')}",
            f"{percent(now.share)} of the traffic in {duration(seconds)}",
            f"{counted(now.spared, 'packet')} of control connections passed" if now.spared else "",
            f"{counted(now.failed, 'packet')} not mirrored" if now.failed else "",
        ]
        text = f"{', '.join(filter(None, parts))}: {cause}"
        severity = "info" if cause == "the policy ended" else "warning"
        self._events.append(
            Event.now(severity, PROBE, text, _subject(name), "end", float(now.packets), "packets")
        )


_STOPPED = "an operator stopped all actions"


def _subject(name: str) -> str:
    return f"action {name}"


def _is_narrow(select: Conjunction) -> bool:
    """Whether a conjunction names hosts, networks or ports."""
    ports = (select.sets[Dimension.SOURCE_PORT], select.sets[Dimension.DESTINATION_PORT])
    ends = (select.sets[Dimension.SOURCE], select.sets[Dimension.DESTINATION])
    return any(
        each is not None and cast(NumberSet, each).bits.bit_count() <= _MOST_PORTS for each in ports
    ) or any(
        each is not None
        and all(length >= _LEAST_PREFIX for (_, _, length), _ in cast(PrefixSet, each).steps)
        for each in ends
    )
