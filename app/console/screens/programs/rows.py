"""Rows and strips of screen 5: the list of programs, and the line above the editor."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from rich.cells import cell_len

from app.console.screens.programs.columns import PROGRAMS
from app.console.screens.programs.model import (
    Programs,
    Slot,
    Verdict,
    loses,
    purpose_of,
)
from app.console.tables.sorted_table import FewRows
from bpf.quantities import byte_size, clock, counted, duration, zone
from probes.config.hook_choice import hook_of
from probes.reports import MemoryUse
from widgets.status import StatusItem
from widgets.table.columns import cell
from widgets.tones import Tone

_ROW = np.dtype(
    [
        *((name, "O") for name in ("id", "probe", "side", "state", "tone", "interface", "hook")),
        *((name, "i8") for name in ("generation", "previous")),
        ("cost", "f8"),
        ("is_measured", "?"),
        *((name, "O") for name in ("memory", "purpose", "metrics")),
    ]
)
"""A direction of a probe. `previous` is the generation of a roll-back or 0, `memory` bytes or None
without a program. `is_measured`: the cost is of this generation."""
_BESIDE = 24
"""Cells of the line above the editor besides file name and remark."""


def program_rows(programs: Programs) -> FewRows:
    """Return a row for each direction of each probe."""
    return FewRows(PROGRAMS, np.array([_row(programs, slot) for slot in programs.slots()], _ROW))


def _row(programs: Programs, slot: Slot) -> tuple[Any, ...]:
    direction = programs.direction(slot)
    program = programs.program(slot)
    if program is not None:
        interface, hook = program.interface, f"{program.hook} {program.mode}"
    else:
        interface = direction.interface if direction else ""
        wish = hook_of(slot.side, direction) if direction else None
        hook = wish.value if wish else "auto" if direction else ""
    info, cost, (state, tone) = (
        programs.infos[slot.probe], programs.costs.get(slot), _state(programs, slot)
    )  # fmt: skip
    purpose = purpose_of(direction.source) if direction else ""
    metrics = (name.partition(".") for name in info.metrics)
    return (
        slot, slot.probe, slot.side, state, tone, interface, hook, info.generation,
        info.previous or 0, cost.ns if cost else math.nan,
        cost is not None and cost.generation == info.generation,
        program.memory if program else None, state if tone is Tone.BAD else purpose,
        ", ".join(name for side, _, name in metrics if side == slot.side),
    )  # fmt: skip


def _state(programs: Programs, slot: Slot) -> tuple[str, Tone]:
    info = programs.infos[slot.probe]
    draft = programs.drafts.get(slot)
    if slot.probe in programs.removed:
        return "removed; edits are kept", Tone.BAD
    if info.failure:
        return f"failed: {info.failure}", Tone.BAD
    if draft is not None and draft.modified:
        return "modified", Tone.WARN
    return info.state, Tone.GOOD if info.state == "runs" else Tone.BAD


def editing_items(
    programs: Programs, slot: Slot, notice: str, doing: str, remark: str, width: int
) -> list[StatusItem]:
    """Return the line above the editor, `width` cells wide.

    `notice` says what a second press of a key would do, `doing` names the running change or check,
    and `remark` is about the cursor's line.
    """
    draft = programs.drafts[slot]
    items = [StatusItem(slot.file, Tone.ACCENT)]
    if draft.modified:
        saved = ", saved" if not draft.unsaved else ""
        items.append(StatusItem(f"MODIFIED{saved}", Tone.WARN, badge=True))
    elif (state := programs.infos[slot.probe].state) != "runs":
        items.append(StatusItem(state, Tone.BAD, priority=1))
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
        at = clock(cost.utc_ns)
        text = f"{cost.ns:.1f} ns/packet, generation {cost.generation} at {at} {zone()}"
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


def note_items(probes: int, memory: MemoryUse, trouble: str) -> list[StatusItem]:
    """Return the number of probes, the memory in use, and the error of the last poll."""
    notes = [StatusItem(counted(probes, "probe"), Tone.MUTED, priority=4)]
    if memory.limit:
        tone = Tone.WARN if memory.used > 0.9 * memory.limit else Tone.MUTED
        sizes = f"{byte_size(memory.used)} of {byte_size(memory.limit)}"
        notes.append(StatusItem(sizes, tone, priority=7, label="memory"))
    if trouble:
        notes.append(StatusItem(trouble, Tone.BAD, priority=1))
    return notes
