"""Sentences about everything that is wrong at the moment of a frame."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from app.console.live import BUSY, FULL
from app.console.live.overview_feed import Pulse, Pulses
from app.console.live.paths import SECOND_NS
from app.console.screens.overview.trouble import Kind, Trouble
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.model import Paths
from app.console.screens.paths.spells import Spell
from app.console.screens.triggers.columns import value_text
from app.console.screens.triggers.model import PolicyView, Triggers, begin_of
from app.events.folding import EventGroup, fold
from bpf.quantities import age, clock, counted, duration, percent, si
from probes.drops.counted import PROBE as DROPS
from probes.monitor.state import PROBE as MONITOR
from probes.monitor.state import PolicyState
from probes.path.records import DESTINATION_HOP, PathRowKind
from probes.snapshot import Event, host_of, loss_noun, loss_subject, lost_of
from widgets.tones import Tone

_OVERLOADED = 0.75
"""Share of an interval that makes reading a probe's tables too slow."""
RECENT_NS = 300 * SECOND_NS
"""Warnings stay for so long after their last repetition."""
_MINUTE_NS = 60 * SECOND_NS
_MOST_EVENTS = 20


def troubles(
    pulses: Pulses, silent: Sequence[Pulse], ended: Mapping[str, str], now: float, left_out: int,
    paths: Paths, triggers: Triggers, events: tuple[Event, ...], utc_ns: int,
    left: Callable[[EventGroup], bool] = lambda group: False,
    others: Iterable[Trouble] = (),
) -> list[Trouble]:  # fmt: skip
    """Return what is wrong, the largest trouble first, then recent warnings, the newest first.

    `silent` probes are late, `ended` has the reasons of ended ones; `now` is `time.monotonic()` of
    the frame, `utc_ns` its end by the events' clock. `left_out` flows have no row. `left` says
    whether the user acknowledged a group of events. `others` are sentences about sockets, hosts
    and outputs.
    """
    found = [
        *_of_probes(pulses, silent, ended, now, events),
        *_of_drops(pulses, now),
        *_of_paths(paths),
        *_of_policies(triggers),
        *others,
    ]
    groups = fold(events)
    lasting = {one.key: one for one in groups if one.is_open}
    found = [_dated(one, lasting.get(one.events)) for one in found]
    told = {one.events for one in found}
    found += _of_events([one for one in groups if not left(one)], utc_ns, told)
    if left_out:
        are = "flow is" if left_out == 1 else "flows are"
        text = f"{si(left_out)} {are} too many to show: Flows has the largest"
        found.append(Trouble(Kind.STRAIN, left_out, text, Tone.WARN, "flows", None))
    return sorted(found, key=lambda one: (one.kind, -one.size))


def _dated(one: Trouble, group: EventGroup | None) -> Trouble:
    """Return a sentence with the time of its begin, if it has an event."""
    if group is None:
        return one
    since = f"since {clock(group.begun_ns)}"
    clauses = tuple(since if clause == one.lasting else clause for clause in one.clauses)
    return replace(one, lasting=since, clauses=clauses)


def calm(pulses: Pulses) -> str:
    """Return the sentence for a frame without present trouble."""
    count = len(pulses.probes)
    if not count:
        return "Starting: no probe has reported yet"
    lost = sum(one.lost.packets for one in pulses.probes.values())
    said = f"{si(lost)} packets lost before" if lost else "no packet lost"
    return f"Nothing is wrong: {counted(count, 'probe')} running, {said}"


def _of_probes(
    pulses: Pulses, silent: Sequence[Pulse], ended: Mapping[str, str], now: float,
    events: Sequence[Event],
) -> Iterator[Trouble]:  # fmt: skip
    for one in pulses.probes.values():
        name = f"Probe {one.name}"
        if one.name in ended:
            text = f"{name} has ended: {ended[one.name]}".removesuffix(": ")
            yield Trouble(Kind.ENDED, 0, text, Tone.BAD, "programs", _program(one))
            continue
        if one in silent:
            text = f"{name} is silent: no window for {age(now - one.came_at)}"
            yield Trouble(
                Kind.SILENT, now - one.came_at, text, Tone.WARN, "programs", _program(one)
            )
            continue
        if lost := lost_of(one.last).packets:
            yield _losing(one, lost, events)
        yield from _strained(one, name)


def _program(one: Pulse) -> tuple[str, str]:
    """Return the key of the first program of a probe on its screen."""
    return one.name, one.side or "ingress"


def _losing(one: Pulse, lost: int, events: Sequence[Event]) -> Trouble:
    reasons = (reason for reason, loss in one.last.items() if reason.is_loss and loss.packets)
    because = ", ".join(reason.label for reason in reasons)
    text = f"Probe {one.name} lost {si(lost)} {loss_noun(one.name)} in its last window: {because}"
    clauses = (f"{si(one.lost.packets)} since the start",)
    about = one.name, loss_subject("")
    told = next((each for each in events if (each.source, each.subject) == about), None)
    screen, row = ("programs", _program(one)) if told is None else ("events", told)
    return Trouble(Kind.LOSES, lost, text, Tone.BAD, screen, row, clauses, one.name, about)


def _of_drops(pulses: Pulses, now: float) -> Iterator[Trouble]:
    """Say what the kernel dropped: a normal host drops a little, and so this is no alarm."""
    probe = pulses.probes.get(DROPS)
    if not pulses.dropped or not probe or now - probe.came_at > 2 * max(1.0, probe.interval):
        return
    total = sum(one.packets for one in pulses.dropped)
    most, *others = (f"{si(one.packets)} {one.reason}" for one in pulses.dropped)
    text = f"The kernel dropped {counted(total, 'packet')} in the last window: {most}"
    row = DROPS, "event"
    yield Trouble(Kind.STRAIN, total, text, Tone.WARN, "programs", row, tuple(others), DROPS)


def _strained(one: Pulse, name: str) -> Iterator[Trouble]:
    if one.share > BUSY:
        over = one.share > _OVERLOADED
        text = f"{name} needs {duration(one.poll)} of each {duration(one.interval)} to read tables"
        kind, tone = (Kind.OVERLOAD, Tone.BAD) if over else (Kind.STRAIN, Tone.WARN)
        yield Trouble(kind, one.share, text, tone, "programs", _program(one))
    if one.occupancy > FULL:
        text = f"The fullest table of {name.lower()} is {percent(one.occupancy)} full"
        about = one.name, "map"
        yield Trouble(
            Kind.STRAIN, one.occupancy, text, Tone.WARN, "programs", _program(one), (), about
        )


def _of_paths(paths: Paths) -> Iterator[Trouble]:
    for kind, rank in ((PathRowKind.LOSS, Kind.LOSS), (PathRowKind.QUEUE, Kind.QUEUE)):
        every = paths.spells(kind)
        for one in every:
            if not one.ended_ns:
                yield _of_spell(one, rank, every, paths.view.now_ns)


def _of_spell(one: Spell, kind: int, every: Iterable[Spell], now_ns: int) -> Trouble:
    is_end = one.router == one.destination or one.hop == DESTINATION_HOP
    where = "before it" if is_end else f"at hop {one.hop} ({one.router})"
    if kind == Kind.LOSS:
        text = f"{percent(one.now)} of packets lost {where} towards {one.destination}"
    else:
        text = f"{duration(one.now)} of queueing {where} towards {one.destination}"
    if is_end:
        text = text.replace(" before it towards", " at the last link before")
    clauses = [f"began {age(one.seconds(now_ns))} ago"]
    places = (each for each in every if (each.destination, each.hop) == (one.destination, one.hop))
    if (times := sum(now_ns - each.began_ns < _MINUTE_NS for each in places)) > 1:
        clauses.append(f"{ordinal(times)} in a minute")
    if len(one.flows) > 1:
        clauses.append(f"on {len(one.flows)} flows")
    row = PathKey(one.destination), DESTINATION_HOP if is_end else one.hop
    hop = "" if is_end and one.hop == DESTINATION_HOP else f" hop {one.hop}"
    about = "path", f"{one.destination}{hop} {'loss' if kind == Kind.LOSS else 'queue'}"
    return Trouble(
        kind, one.now, text, Tone.WARN, "paths", row, tuple(clauses), None, about, clauses[0]
    )


def ordinal(number: int) -> str:
    """`3rd`."""
    teen = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _of_policies(triggers: Triggers) -> Iterator[Trouble]:
    for one in triggers.statuses(0):
        state, policy = one.info.state, one.info.policy
        if state.runs and policy.mode == "triggered" and not one.info.forced:
            yield _of_policy(one, triggers, state)


def _of_policy(one: PolicyView, triggers: Triggers, state: PolicyState) -> Trouble:
    fires = state is PolicyState.ACTIVE
    known = not math.isnan(one.numbers["value"])
    text = f"Policy {one.name} {'fires' if fires else 'fired and holds'}"
    amount = ""
    if begun := begin_of(triggers.transitions(one.name, _MOST_EVENTS)):
        # The culprit comes first: a narrow screen cuts the rest.
        who, _, amount = begun.finding.partition("; ")
        text = f"{one.name}{'' if fires else ', over now'}: {who}"
    else:
        text += f": {value_text(one, 'value')} now" if fires and known else ""
    lasting = ""
    if one.now_utc_ns:
        lasting = f"for {age((one.now_utc_ns - one.info.since_utc_ns) / 1e9)}"
    clauses = filter(None, (lasting, amount, f"runs {', '.join(one.info.policy.run)}"))
    size = one.ratio if math.isfinite(one.ratio) else 0.0
    about, row = (MONITOR, f"policy {one.name}"), one.name
    return Trouble(
        Kind.FIRES,
        size + fires,
        text,
        Tone.WARN,
        "triggers",
        row,
        tuple(clauses),
        None,
        about,
        lasting,
    )


def _of_events(
    groups: Iterable[EventGroup], utc_ns: int, told: Collection[tuple[str, str]]
) -> Iterator[Trouble]:
    """Return a sentence for each cause of warnings and errors, except for those that are `told`."""
    for group in groups:
        if group.severity == "info" or group.key in told:
            continue
        if not group.is_open and utc_ns - group.last_ns > RECENT_NS:
            continue
        is_error = group.severity == "error"
        kind = Kind.ERROR if is_error else Kind.WARNING if group.is_open else Kind.PAST
        tone = Tone.BAD if is_error else Tone.WARN if group.is_open else Tone.MUTED
        event = next(each for each in group.events if each.severity == group.severity)
        source = f"{event.source} of {host}" if (host := host_of(event)) else event.source
        text = f"{clock(event.utc_ns)} {source}: {event.text}"
        clauses = (f"{group.times} times",) if group.times > 1 else ()
        yield Trouble(kind, event.utc_ns, text, tone, "events", event, clauses, group.key)
