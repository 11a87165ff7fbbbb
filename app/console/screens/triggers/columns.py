"""Columns of screen 4: policies and applications."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.console.tables.spec import ColumnSpec, TableSpec
from widgets.format import MISSING, si
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.triggers.rows import ApplicationLine, PolicyLine

UNSURE = "?"
"""After a value whose error band reaches over the threshold."""

POLICIES: TableSpec[PolicyLine] = TableSpec(
    "policies",
    (
        ColumnSpec("policy", "Policy", 12, help="Name of the policy.",
            cell=lambda policy: policy.status.name, tone=lambda policy: policy.name_tone),
        ColumnSpec("state", "State", 14,
            help="off, armed, active, hold (stays active for a while) or cool-down, with its time.",
            cell=lambda policy: policy.state, tone=lambda policy: policy.state_tone,
            value=lambda policy: policy.status.info.state.label,
            rank=lambda policy: policy.state_rank),
        ColumnSpec("condition", "Condition", 9, priority=7,
            help="The policy is active while this holds; always, or while the user says so.",
            cell=lambda policy: policy.status.info.policy.when),
        ColumnSpec("value", "Value", 8, "right", priority=1, larger_first=True,
            help="Value that the condition compares, of the last window.",
            cell=lambda policy: si(policy.value) + ("" if policy.status.sure else f" {UNSURE}"),
            tone=lambda policy: policy.value_tone, value=lambda policy: policy.value,
            rank=lambda policy: policy.ratio),
        ColumnSpec("band", "Band", 12, priority=4, larger_first=True,
            help="95 % confidence interval of the value: numbers of flows are estimates.",
            cell=lambda policy: policy.band, tone=Tone.MUTED,
            value=lambda policy: policy.exact_band, rank=lambda policy: policy.band_width),
        ColumnSpec("threshold", "Threshold", 9, "right", priority=2, larger_first=True,
            help="Threshold that the value is compared with.",
            cell=lambda policy: si(policy.threshold), tone=Tone.MUTED,
            value=lambda policy: policy.threshold),
        ColumnSpec("line", "", 12, priority=3, grows=True, drawn=True,
            help="The value over time; half a bar is the threshold. A ground behind the bar: the"
            " policy was active.",
            cell=lambda policy: policy.line, tone=Tone.MUTED),
        ColumnSpec("runs", "Runs", 9, priority=5, help="Applications that the policy wakes.",
            cell=lambda policy: policy.runs),
        ColumnSpec("selected", "Selected", 8, "right", priority=6, larger_first=True,
            help="Packets that the policy gave to its applications.",
            cell=lambda policy: si(policy.status.info.selected), tone=Tone.MUTED,
            value=lambda policy: policy.status.info.selected),
    ),
)  # fmt: skip

APPLICATIONS: TableSpec[ApplicationLine] = TableSpec(
    "applications",
    (
        ColumnSpec("application", "Application", 12, help="A program that policies wake.",
            cell=lambda one: one.info.name,
            tone=lambda one: Tone.ACCENT if one.info.active else Tone.NORMAL),
        ColumnSpec("active", "State", 6,
            help="active while a policy gives it packets, otherwise idle.",
            cell=lambda one: "active" if one.info.active else "idle",
            tone=lambda one: Tone.WARN if one.info.active else Tone.MUTED),
        ColumnSpec("packets", "Packets", 8, "right", larger_first=True,
            help="Packets since the application was loaded.",
            cell=lambda one: si(one.info.packets), value=lambda one: one.info.packets),
        ColumnSpec("ns", "ns/packet", 9, "right", priority=1, larger_first=True,
            help="Time for a packet, measured when the application was loaded.",
            cell=lambda one: nanoseconds(one.info.ns), value=lambda one: one.info.ns),
        ColumnSpec("policies", "Run by", 9, priority=2,
            help="Policies that wake the application.",
            cell=lambda one: one.run_by or "no policy",
            tone=lambda one: Tone.NORMAL if one.run_by else Tone.MUTED,
            value=lambda one: one.run_by),
        ColumnSpec("summary", "What it does", 30, priority=3, grows=True,
            help="The application in a few words.",
            cell=lambda one: one.info.summary, tone=Tone.MUTED),
    ),
)  # fmt: skip


def nanoseconds(value: float) -> str:
    """Return nanoseconds with a decimal."""
    return f"{value:.1f}" if math.isfinite(value) else MISSING
