"""Columns of screen 4: policies and applications."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from app.console.tables.spec import TableSpec
from bpf.quantities import MISSING, age, percent, si
from probes.monitor.actions.state import ActionState
from probes.monitor.state import PolicyState
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from app.console.screens.triggers.model import PolicyView
    from probes.monitor.info import ApplicationInfo, PolicyInfo
    from widgets.table.rows import Pieces


_GAUGE_CELLS = 9
_LIMIT = 0.8
"""Place of the threshold in a gauge."""
_MOST_SHARE = 10
"""Values of more thresholds than this have no percentage."""


def nanoseconds(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else MISSING


def with_unit(value: float, unit: str) -> str:
    """Return a value of a comparison in its unit: `800 Mbit/s`, `12.3 k/s`, `93 %`."""
    if unit == "%":
        return percent(value)
    return si(value * 8 if unit.startswith("bit") else value, unit)


def value_text(one: PolicyView, name: str) -> str:
    return with_unit(float(one.numbers[name]), one.unit)


def gauge_pieces(one: PolicyView) -> Pieces:
    """Return the value as a bar that ends beyond the threshold, and in per cent of it."""
    from widgets.sparkline import gauge  # it draws: settings need the columns alone

    if math.isnan(one.ratio):
        return ()
    drawn = gauge(one.ratio * _LIMIT, _GAUGE_CELLS, _LIMIT)
    tone = Tone.WARN if one.numbers["holds"] else Tone.ACCENT
    bar = [(text, tone if of is Tone.WARN else of) for text, of in drawn]
    share = f"{100 * one.ratio:.0f} %" if one.ratio < _MOST_SHARE else f">{_MOST_SHARE} x"
    return (*bar, (f"{share:>6}", Tone.WARN if one.numbers["holds"] else Tone.MUTED))


def band_text(one: PolicyView, between: str = "..") -> str:
    """Return the error band, `982..1.06k` or `3..5/s`; empty if the value is exact or missing."""
    if one.exact or math.isnan(one.numbers["value"]):
        return ""
    low, high = (value_text(one, end).replace(" ", "") for end in ("low", "high"))
    return f"{low.removesuffix('/s') if high.endswith('/s') else low}{between}{high}"


def state_text(info: PolicyInfo, now_utc_ns: int) -> str:
    """Return the state with its age, `active 12 s`, or with its remaining time, `hold -3 s`.

    `now_utc_ns` is 0 if it is unknown.
    """
    word = "forced" if info.forced and info.state.runs else info.state.label
    if not now_utc_ns:
        return word
    if info.until_utc_ns:
        return f"{word} -{age(math.ceil(left(info, now_utc_ns)))}"
    return f"{word} {age((now_utc_ns - info.since_utc_ns) / 1e9)}" if info.state.runs else word


def left(info: PolicyInfo, now_utc_ns: int) -> float:
    """Return the seconds until HOLD or COOLDOWN ends."""
    return max(0.0, (info.until_utc_ns - now_utc_ns) / 1e9)


def state_tone(info: PolicyInfo) -> Tone:
    """Return the tone of a policy's state: one that a condition woke is a warning."""
    if info.state.runs:
        return Tone.WARN if info.policy.mode == "triggered" and not info.forced else Tone.ACCENT
    return {PolicyState.ARMED: Tone.GOOD, PolicyState.COOLDOWN: Tone.NORMAL}.get(
        info.state, Tone.MUTED
    )


def action_text(info: PolicyInfo, now_utc_ns: int) -> str:
    """Return the state of a policy's action: `acts 98.2 % -4m`, the share of the last window."""
    if (action := info.action) is None:
        return ""
    if not action.until_utc_ns:
        return action.state
    left = age(max(0.0, (action.until_utc_ns - now_utc_ns) / 1e9)) if now_utc_ns else ""
    return f"{action.state} {percent(action.share)}{left and f' -{left}'}"


def action_tone(info: PolicyInfo) -> Tone:
    if info.action and info.action.state is ActionState.ACTS:
        return Tone.BAD
    return Tone.WARN if info.action and info.action.until_utc_ns else Tone.MUTED


_RANKS = (
    PolicyState.ACTIVE, PolicyState.HOLD, PolicyState.COOLDOWN, PolicyState.ARMED, PolicyState.OFF,
)  # fmt: skip
"""Order of states: first those that run, then those that may."""
POLICIES: TableSpec[PolicyView] = TableSpec(
    "policies",
    (
        Column("policy", "Policy", 12, help="Name of the policy.",
            cells=lambda policy: policy.name,
            tone=lambda one: Tone.MUTED if one.info.state is PolicyState.OFF else Tone.ACCENT),
        Column("node", "Node", 8, hidden=True,
            help="The host of the fleet whose policy it is, where several hosts are chosen.",
            cells=lambda policy: policy.host),
        Column("state", "State", 14,
            help="off, armed, active, hold (stays active for a while) or cool-down, with its time.",
            cells=lambda policy: state_text(policy.info, policy.now_utc_ns),
            tone=lambda policy: state_tone(policy.info),
            written=lambda policy: policy.info.state.label,
            order=lambda policy: _RANKS.index(policy.info.state)),
        Column("condition", "Condition", 9, priority=7,
            help="The policy is active while this holds; always, or while the user says so.",
            cells=lambda policy: policy.info.policy.when),
        Column("value", "Value", 10, "right", priority=1, larger_first=True,
            help="Value that the condition compares, of the last window.",
            cells=lambda one: value_text(one, "value") + ("" if one.sure else " ?"),
            tone=lambda one: Tone.WARN if one.numbers["holds"] or not one.sure else Tone.NORMAL,
            written=lambda policy: float(policy.numbers["value"]),
            order=lambda policy: policy.ratio),
        Column("band", "Band", 12, priority=6, larger_first=True,
            help="95 % confidence interval of the value: numbers of flows are estimates.",
            cells=band_text, tone=Tone.MUTED,
            written=lambda policy: None if policy.exact else "..".join(
                f"{end:.6g}" for end in policy.band),
            order=lambda policy: policy.band[1] - policy.band[0]),
        Column("threshold", "Threshold", 9, "right", priority=2, larger_first=True,
            help="Threshold that the value is compared with.",
            cells=lambda policy: value_text(policy, "threshold"), tone=Tone.MUTED,
            written=lambda policy: float(policy.numbers["threshold"])),
        Column("gauge", "Of threshold", 15, priority=3, larger_first=True,
            help="The value in units of the threshold; │ is the threshold.",
            cells=gauge_pieces, written=lambda one: one.ratio, order=lambda one: one.ratio),
        Column("activity", "Last 10 min", 20, priority=4, drawn=True,
            help="When the policy was active: █. Each cell is half a minute.",
            cells=lambda policy: policy.activity),
        Column("line", "", 12, priority=8, grows=True, drawn=True,
            help="The value over time; half a bar is the threshold. A ground behind the bar: the"
            " policy was active.",
            cells=lambda policy: policy.bars, tone=Tone.MUTED),
        Column("runs", "Wakes", 9, priority=5, help="Applications that the policy wakes.",
            cells=lambda policy: ", ".join(policy.info.policy.run)),
        Column("action", "Action", 22, priority=5,
            help="What becomes of the packets: dry run or acts, with the share of all packets that"
            " it takes and the time that is left; ended before its policy did.",
            cells=lambda policy: action_text(policy.info, policy.now_utc_ns),
            tone=lambda policy: action_tone(policy.info)),
        Column("selected", "Matched", 8, "right", priority=9, larger_first=True,
            help="Packets that the policy gave to its applications.",
            cells=lambda policy: si(policy.info.selected), tone=Tone.MUTED,
            written=lambda policy: policy.info.selected),
    ),
)  # fmt: skip

APPLICATIONS: TableSpec[tuple[ApplicationInfo, str]] = TableSpec(
    "applications",
    (
        Column("application", "Application", 12, help="A program that policies wake.",
            cells=lambda one: one[0].name,
            tone=lambda one: Tone.ACCENT if one[0].active else Tone.NORMAL),
        Column("active", "State", 6,
            help="active while a policy gives it packets, held if the CPU budget gives it none,"
            " otherwise idle.",
            cells=lambda one: one[0].state,
            tone=lambda one: Tone.MUTED if one[0].state == "idle" else Tone.WARN),
        Column("packets", "Packets", 8, "right", larger_first=True,
            help="Packets since the application was loaded.",
            cells=lambda one: si(one[0].packets), written=lambda one: one[0].packets),
        Column("ns", "ns/packet", 9, "right", priority=1, larger_first=True,
            help="Time for a packet, measured when the application was loaded.",
            cells=lambda one: nanoseconds(one[0].ns), written=lambda one: one[0].ns),
        Column("policies", "Woken by", 9, priority=2,
            help="Policies that wake the application.",
            cells=lambda one: one[1] or "no policy",
            tone=lambda one: Tone.NORMAL if one[1] else Tone.MUTED,
            written=lambda one: one[1]),
        Column("summary", "What it does", 30, priority=3, grows=True,
            help="The application in a few words.",
            cells=lambda one: one[0].summary, tone=Tone.MUTED),
    ),
)  # fmt: skip
