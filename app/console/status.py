"""The status strip: state of the data, of the console and of the probes."""

from __future__ import annotations

from app.console.live import BUSY, FULL
from app.console.protocol import Console
from app.events.folding import fold
from bpf.attach.attachment import Hook
from bpf.quantities import age, clock, counted, duration, percent, zone
from probes.snapshot import SEVERITIES, WAITS
from widgets.status import StatusItem
from widgets.tones import Tone

_STALE_AFTER = 2.5
"""Intervals without a window after which the strip shows the age of the data."""

_OF_ONE = {"overview": "hops and policies of", "programs": "programs of"}
"""Screens with something that is of one host, though several are chosen."""
_MISSING_CELLS = 24
"""Cells for the names of several missing hosts; longer names are counted."""


def status_items(console: Console, where: str, tape: list[StatusItem]) -> list[StatusItem]:
    """Return the items of the strip. `where` is the interface or the host of the probes."""
    plane, moment, last = console.plane, console.time, console.time.frame.last
    failure = plane.failure()
    items = [
        _badge(console), *tape, *moment.status_items(), *console.tasks.status_items(),
        *console.terminal.status_items(),
    ]  # fmt: skip
    if plane.read_only:
        items.append(StatusItem("READ ONLY", Tone.WARN, badge=True))
    if failure is not None:
        items.append(StatusItem(failure.message, Tone.BAD))
    items += _host_items(console, where)
    if last is not None:
        poll, lost = (last.swap_ns + last.drain_ns) / 1e9, moment.present.lost
        if poll > BUSY * last.seconds > 0:
            text = f"{duration(poll)} of {duration(last.seconds)}"
            items.append(StatusItem(text, Tone.WARN, label="reading takes", priority=4))
        if last.occupancy > FULL:
            text = percent(last.occupancy)
            items.append(StatusItem(text, Tone.WARN, label="table full to", priority=3))
        items.append(
            StatusItem(str(lost), Tone.BAD if lost else Tone.GOOD, label="lost", priority=2)
        )
    if steps := plane.budget().steps:
        items.append(StatusItem(steps[-1], Tone.WARN, 3, label="CPU budget cuts"))
    if plane.capture:
        items.append(StatusItem(plane.capture, Tone.WARN, 3, label="only"))
    return items


def title(console: Console, where: str) -> str:
    """Return the title of the terminal's window: the gravest event that goes on, if any."""
    marks = console.event_marks
    lasting = [
        group
        for group in fold(marks.unmuted(console.time.present.events))
        if group.is_open and group.severity != "info" and not marks.is_acknowledged(group)
    ]
    if not lasting:
        return f"probedeck {where}"
    gravest = max(lasting, key=lambda group: (SEVERITIES.index(group.severity), group.begun_ns))
    text = next(each.text for each in gravest.events if each.severity == gravest.severity)
    return f"{text}, since {clock(gravest.begun_ns)}"


def _host_items(console: Console, where: str) -> list[StatusItem]:
    """Return the name, if it has one, and the hooks of the host; of several, how many count."""
    planes, missing = console.hosts.planes, console.time.frame.missing
    if not console.hosts.several:
        items = []
        for one in (one for one in planes.states() if one.name in planes.chosen):
            items.append(StatusItem(one.name, Tone.ACCENT, priority=1))
            if not one.state.counts:
                items.append(StatusItem(str(one.state), Tone.BAD))
            where = one.url
        return [*items, *_hook_items(console, where)]
    items = [StatusItem(counted(len(planes.chosen), "host"), Tone.ACCENT, priority=1)]
    if missing:
        names_fit = len(which := ", ".join(missing)) <= _MISSING_CELLS
        which = which if names_fit or len(missing) == 1 else f"{len(missing)} of them"
        items.append(StatusItem(f"without {which}", Tone.BAD))
    if label := _OF_ONE.get(console.app.current_mode):
        items.append(StatusItem(planes.current, Tone.ACCENT, 1, label=label))
    return items


def _badge(console: Console) -> StatusItem:
    plane, moment = console.plane, console.time
    ended_ns = console.time.frame.utc_ns
    if moment.replays:
        sign = "PLAYING" if moment.playing else "REPLAY"
        return StatusItem(f"{sign} {clock(ended_ns)} {zone()}", Tone.ACCENT, badge=True)
    if moment.paused:
        text = f"PAUSED {clock(ended_ns)} {zone()}" if ended_ns else "PAUSED"
        return StatusItem(text, Tone.WARN, badge=True)
    if plane.failure() is not None:
        return StatusItem("ENDED", Tone.BAD, badge=True)
    if console.time.frame.last is None:
        return StatusItem("STARTING", Tone.MUTED, badge=True)
    if late := plane.late_by:
        return StatusItem(f"SLOW LINK: {age(late)} LATE", Tone.WARN, badge=True)
    if plane.interval and (old := moment.since_window) > _STALE_AFTER * plane.interval:
        return StatusItem(f"NO DATA FOR {age(old)}", Tone.WARN, badge=True)
    return StatusItem("LIVE", Tone.GOOD, badge=True)


def _hook_items(console: Console, where: str) -> list[StatusItem]:
    """Return the mode of each hook, and programs of others that see packets first."""
    hooks = console.plane.hook_status()
    arriving = Hook.XDP.value, Hook.TC_INGRESS.value
    modes = " ".join(dict.fromkeys(each.mode for each in hooks if each.hook in arriving))
    blind = any(each.mode in ("removed", WAITS) for each in hooks)
    tone = Tone.BAD if blind else Tone.NORMAL
    remote = ":/" in where
    interfaces = ",".join(dict.fromkeys(each.interface for each in hooks)) if remote else ""
    items = [StatusItem(f"{interfaces or where} {modes}".rstrip(), tone, priority=1)]
    if interfaces:
        items.append(StatusItem(where, Tone.MUTED, priority=7, label="at"))
    if before := list(dict.fromkeys(name for each in hooks for name in each.before)):
        more = f" and {len(before) - 1} more" if len(before) > 1 else ""
        tone = Tone.WARN if any(each.foreign for each in hooks) else Tone.MUTED
        items.append(StatusItem(f"{before[0]}{more}", tone, 3, label="behind"))
    return items
