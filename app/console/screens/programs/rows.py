"""The upper part of screen 5: the list of programs, and the line above the editor."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.cells import cell_len

from app.console.screens.programs.model import Programs, Slot, Verdict, loses
from probes.config.model import hook_of
from widgets.format import MISSING, byte_size, duration
from widgets.status import StatusItem
from widgets.table.columns import Column, cell
from widgets.table.rows import Row, Rows
from widgets.tones import Tone

COLUMNS = (
    Column("probe", "Probe", 14),
    Column("side", "Direction", 9),
    Column("state", "State", 10, grows=True),
    Column("interface", "Interface", 9, priority=2),
    Column("hook", "Hook", 15, priority=5),
    Column("generation", "Gen (before)", 12, "right", priority=1),
    Column("cost", "ns/packet", 9, "right", priority=3, unit="ns"),
    Column("memory", "Memory", 9, "right", priority=4, unit="bytes"),
    Column("metrics", "Metrics", 16, priority=6, grows=True),
)
_BESIDE = 24
"""Cells of the line above the editor that are not the file's name nor a remark."""


def program_rows(programs: Programs) -> Rows:
    """A row for each direction of each probe."""
    return Rows.of(_row(programs, slot) for slot in programs.slots())


def _row(programs: Programs, slot: Slot) -> Row:
    info = programs.infos[slot.probe]
    direction = programs.direction(slot)
    program = programs.program(slot)
    before = f"{info.generation} ({info.previous})" if info.previous else str(info.generation)
    cost = programs.costs.get(slot)
    fresh = cost is not None and cost.generation == info.generation
    metrics = [name.partition(".")[2] for name in info.metrics if name.startswith(f"{slot.side}.")]
    state, tone = _state(programs, slot)
    if program is not None:
        where, hook = program.interface, f"{program.hook} {program.mode}"
    else:
        where = direction.interface if direction else ""
        wish = hook_of(slot.side, direction) if direction else None
        hook = wish.value if wish else "auto" if direction else ""
    cells = (
        slot.probe,
        slot.side,
        state,
        where,
        hook,
        before,
        f"{cost.ns:.1f}" if cost else MISSING,
        byte_size(program.memory) if program else MISSING,
        ", ".join(metrics),
    )
    memory = program.memory if program else None
    values = (*cells[:5], info.generation, cost.ns if cost else None, memory, cells[8])
    muted = Tone.MUTED
    name = muted if tone is Tone.BAD else Tone.ACCENT
    aged = Tone.NORMAL if fresh else muted
    tones = (name, Tone.NORMAL, tone, Tone.NORMAL, muted, Tone.NORMAL, aged, muted, muted)
    return Row(slot, cells, tones, values)


def _state(programs: Programs, slot: Slot) -> tuple[str, Tone]:
    info = programs.infos[slot.probe]
    draft = programs.drafts.get(slot)
    if slot.probe in programs.removed:
        return "removed; edits are kept", Tone.BAD
    if info.failure:
        return f"failed: {info.failure}", Tone.BAD
    if draft is not None and draft.modified:
        return "modified", Tone.WARN
    return "runs", Tone.GOOD


def editing_items(
    programs: Programs, slot: Slot, notice: str, doing: str, remark: str, width: int
) -> list[StatusItem]:
    """What is in the editor and what is known of it, for a line of `width` cells.

    `notice` is what a second press of a key would do, `doing` what is being done, and `remark` is
    about the cursor's line.
    """
    draft = programs.drafts[slot]
    items = [StatusItem(slot.file, Tone.ACCENT)]
    if draft.modified:
        saved = ", saved" if not draft.unsaved else ""
        items.append(StatusItem(f"MODIFIED{saved}", Tone.WARN, badge=True))
    elif failure := programs.infos[slot.probe].failure:
        items.append(StatusItem(failure, Tone.BAD, priority=1))
    else:
        generation = programs.infos[slot.probe].generation
        items.append(StatusItem(f"generation {generation} runs this", Tone.GOOD, priority=2))
    if notice:
        items.append(StatusItem(notice, Tone.WARN, priority=1))
    elif doing:
        items.append(StatusItem(doing, Tone.ACCENT, priority=1))
    elif remark:
        room = max(20, width - _BESIDE - len(slot.file))
        items.append(
            StatusItem(cell(remark, min(room, cell_len(remark)), "left"), Tone.BAD, priority=1)
        )
    elif (verdict := programs.verdict(slot.probe)) is not None:
        items += _verdict_items(verdict, slot)
    if draft.unsaved:
        items.append(StatusItem("ctrl+s writes it to a file", Tone.MUTED, priority=7))
    cost = programs.costs.get(slot)
    if cost is not None:
        at = datetime.fromtimestamp(cost.time, UTC).strftime("%H:%M:%S")
        text = f"{cost.ns:.1f} ns/packet, generation {cost.generation} at {at} UTC"
        items.append(StatusItem(text, Tone.MUTED, priority=6, label="measured"))
    if (program := programs.program(slot)) is not None:
        text = f"{program.interface} {program.hook} {program.mode}"
        items.append(StatusItem(text, Tone.MUTED, priority=5))
    return items


def _verdict_items(verdict: Verdict, slot: Slot) -> list[StatusItem]:
    if verdict.check is None:
        return [StatusItem("refused", Tone.BAD, priority=1)]
    items = [StatusItem(f"verified in {duration(verdict.check.seconds)}", Tone.GOOD, priority=1)]
    items += [
        StatusItem(f"{cost.ns:.1f} ns/packet", Tone.NORMAL, priority=3, label="would take")
        for cost in verdict.check.costs
        if cost.side == slot.side
    ]
    if loses(verdict.check):
        items.append(StatusItem("a swap loses something: report", Tone.WARN, priority=2))
    return items
