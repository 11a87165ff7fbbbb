"""Screen 4 in words: the last window's counters, a row for each policy and each application."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from app.console.screens.triggers.model import Standing, Triggers, relative
from probes.monitor.info import ApplicationInfo, MonitorInfo, PolicyInfo
from probes.monitor.options import Input
from probes.monitor.records import POLICY
from probes.monitor.state import PolicyState
from probes.snapshot import Snapshot
from widgets.format import MISSING, age, bit_rate, percent, si
from widgets.sparkline import bars, round_scale
from widgets.status import StatusItem
from widgets.table.columns import Column
from widgets.table.rows import Pieces, Row, Rows
from widgets.tones import Tone

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

_NAME_CELLS, _CONDITION_CELLS, _RUN_CELLS = (12, 24), (9, 32), (9, 24)
"""The least and the most of columns that are as wide as the widest text in them."""
_LINE_CELLS = 12
_HALF = "▄ threshold"
_TOP = 2.0
"""The end of the scale of time lines, in thresholds: half a bar is one."""
_SHADES = "█▓▒░"
"""Of TCP, UDP, ICMP and what is neither: told apart without colours."""
_RANKS = (
    PolicyState.ACTIVE,
    PolicyState.HOLD,
    PolicyState.COOLDOWN,
    PolicyState.ARMED,
    PolicyState.OFF,
)
"""States in their order: those that run come first, then those that may."""
UNSURE = "?"
"""After a value whose error band reaches over the threshold."""
EXAMPLE = "flood: flows > 500 -> heavy_hitters"


def empty_text(info: MonitorInfo | None, known: bool, read_only: bool) -> str:
    """What is shown in the place of policies."""
    if not known:
        return ""
    if info is None:
        told = f"no monitor runs\n\nprobedeck run -i IFACE --policy '{EXAMPLE}'"
        return told if read_only else f"{told}\n\na adds a policy, which starts it here"
    told = "there is no policy: only counters and flows are measured"
    return told if read_only else f"{told}\n\na adds one, such as\n{EXAMPLE}"


def policy_columns(policies: Sequence[Policy], span: float, cells: int) -> tuple[Column, ...]:
    """The columns of a table of policies, whose time lines are `cells` wide, of `span` seconds."""
    titles = (f"last {age(span)}, ▄ is the threshold", f"{age(span)} {_HALF}", _HALF)
    title = next((title for title in titles if len(title) <= cells), _HALF)
    return (
        Column("policy", "Policy", _width((one.name for one in policies), _NAME_CELLS)),
        Column("state", "PolicyState", 14),
        Column("condition", "Condition", _width((one.when for one in policies), _CONDITION_CELLS),
               priority=7),
        Column("value", "Value", 8, "right", priority=1),
        Column("band", "Band", 12, priority=4),
        Column("threshold", "Threshold", 9, "right", priority=2),
        Column("line", title, _LINE_CELLS, priority=3, grows=True),
        Column("runs", "Runs", _width(map(_runs, policies), _RUN_CELLS), priority=5),
        Column("selected", "Selected", 8, "right", priority=6),
    )  # fmt: skip


def application_columns(triggers: Triggers) -> tuple[Column, ...]:
    """The columns of the table of applications."""
    info = triggers.info
    names = [one.name for one in info.applications] if info else []
    seen = "Records" if info and info.input is Input.TELEMETRY else "Packets"
    by = (_run_by(triggers, name) for name in names)
    return (
        Column("application", "Application", _width(names, _NAME_CELLS)),
        Column("active", "PolicyState", 6),
        Column("packets", seen, 8, "right"),
        Column("ns", "ns/packet", 9, "right", priority=1),
        Column("policies", "Run by", _width(by, _RUN_CELLS), priority=2),
        Column("summary", "What it does", 30, priority=3, grows=True),
    )


def _width(texts: Iterable[str], cells: tuple[int, int]) -> int:
    least, most = cells
    return max(least, min(most, max(map(len, texts), default=0)))


def _runs(policy: Policy) -> str:
    return ", ".join(policy.run)


def _run_by(triggers: Triggers, application: str) -> str:
    return ", ".join(triggers.runs(application))


def policy_rows(standings: Sequence[Standing], now_utc_ns: int) -> Rows:
    """A row for each policy, whose key is its name."""
    return Rows.of(_policy_row(one, now_utc_ns) for one in standings)


def _policy_row(one: Standing, now_utc_ns: int) -> Row:
    numbers = one.numbers
    state, tone = state_text(one.info, now_utc_ns), state_tone(one.info)
    value = si(numbers["value"]) + ("" if one.sure else f" {UNSURE}")
    valued = Tone.WARN if not one.sure or numbers["holds"] else Tone.NORMAL
    cells = (
        one.name,
        state,
        one.info.policy.when,
        value,
        band_text(one),
        si(numbers["threshold"]),
        _line(one),
        _runs(one.info.policy),
        si(one.info.selected),
    )
    values = (
        one.name,
        one.info.state.label,
        cells[2],
        float(numbers["value"]),
        None if one.exact else "..".join(f"{numbers[end]:.6g}" for end in ("low", "high")),
        float(numbers["threshold"]),
        None,
        cells[7],
        one.info.selected,
    )
    ratio = float(relative(np.array([numbers], POLICY))[0])
    ranks = {1: _RANKS.index(one.info.state), 3: ratio, 4: float(numbers["high"] - numbers["low"])}
    muted = Tone.MUTED
    name = Tone.ACCENT if one.info.state is not PolicyState.OFF else muted
    tones = (name, tone, Tone.NORMAL, valued, muted, muted, muted, Tone.NORMAL, muted)
    return Row(one.name, cells, tones, values, ranks)


def _line(one: Standing) -> Pieces:
    tones = np.where(one.line.holds, Tone.WARN, Tone.ACCENT)
    tones = np.where(one.line.active, Tone.ACTIVE, tones)
    return bars(one.line.values, map(Tone, tones.tolist()), _TOP)


def band_text(one: Standing, between: str = "..") -> str:
    """`982..1.06k`; empty where the value is exact or there is none."""
    if one.exact:
        return ""
    return between.join(si(one.numbers[end]).replace(" ", "") for end in ("low", "high"))


def state_text(info: PolicyInfo, now_utc_ns: int) -> str:
    """`armed`, `active 12 s`, `forced 12 s`, and what is left: `hold -3 s`, `cool-down -8 s`.

    `now_utc_ns` is 0 where it is not known.
    """
    word = "forced" if info.forced and info.state.runs else info.state.label
    if not now_utc_ns:
        return word
    if info.until_utc_ns:
        return f"{word} -{age(math.ceil(left(info, now_utc_ns)))}"
    return f"{word} {age((now_utc_ns - info.since_utc_ns) / 1e9)}" if info.state.runs else word


def left(info: PolicyInfo, now_utc_ns: int) -> float:
    """Seconds until HOLD or COOLDOWN is over."""
    return max(0.0, (info.until_utc_ns - now_utc_ns) / 1e9)


def state_tone(info: PolicyInfo) -> Tone:
    """What its state means: that a condition holds asks for attention."""
    if info.state.runs:
        return Tone.WARN if info.policy.mode == "triggered" and not info.forced else Tone.ACCENT
    return {PolicyState.ARMED: Tone.GOOD, PolicyState.COOLDOWN: Tone.NORMAL}.get(
        info.state, Tone.MUTED
    )


def application_rows(triggers: Triggers) -> Rows:
    """A row for each application, whose key is its name."""
    known = triggers.info.applications if triggers.info else ()
    return Rows.of(_application_row(one, _run_by(triggers, one.name)) for one in known)


def _application_row(one: ApplicationInfo, run_by: str) -> Row:
    cells = (
        one.name,
        "active" if one.active else "idle",
        si(one.packets),
        nanoseconds(one.ns),
        run_by or "no policy",
        one.summary,
    )
    values = (one.name, cells[1], one.packets, one.ns, run_by, one.summary)
    muted = Tone.MUTED
    name, state = (Tone.ACCENT, Tone.WARN) if one.active else (Tone.NORMAL, muted)
    by = Tone.NORMAL if run_by else muted
    return Row(one.name, cells, (name, state, Tone.NORMAL, Tone.NORMAL, by, muted), values)


def nanoseconds(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else MISSING


def counter_items(triggers: Triggers, cells: int) -> list[StatusItem]:
    """The last window: rates, distinct flows, and their time line of so many cells."""
    if not triggers.view.metrics:
        return [StatusItem("no window yet", Tone.MUTED)]
    window = triggers.view.metrics[-1]
    row, seconds = window.rows[0], max(window.seconds, 1e-9)
    flows = triggers.flows(cells)
    scale = round_scale(float(np.nanmax(flows, initial=0.0)))
    line = "".join(text for text, _ in bars(flows, [Tone.ACCENT] * cells, scale))
    band = "..".join(si(row[end]).replace(" ", "") for end in ("flows_low", "flows_high"))
    return [
        StatusItem(si(row["packets"] / seconds), label="pkt/s"),
        StatusItem(bit_rate(row["bytes"] * 8 / seconds)),
        StatusItem(si(row["flows"]), Tone.ACCENT, label="flows"),
        StatusItem(band, Tone.MUTED, priority=1),
        StatusItem(line, Tone.ACCENT, priority=2, label=f"≤{si(scale)}"),
    ]


def mix_items(metrics: Sequence[Snapshot], cells: int) -> list[StatusItem]:
    """The protocols of the last window's packets: a bar of so many cells, and shares."""
    return share_items(protocols(metrics[-1].rows[0]), cells) if metrics else []


def share_items(counts: Mapping[str, int], cells: int) -> list[StatusItem]:
    """Protocols and their packets: a bar of so many cells, and shares."""
    total = sum(counts.values())
    shares = [count / total if total else math.nan for count in counts.values()]
    legend = [
        StatusItem(percent(share), Tone.NORMAL if share > 0 else Tone.MUTED, 1, f"{shade} {name}")
        for name, share, shade in zip(counts, shares, _SHADES, strict=True)
    ]
    return [StatusItem(mix_bar(shares, cells), Tone.ACCENT), *legend]


def protocols(row: Any) -> dict[str, int]:
    """Packets by protocol, of one row of dtype METRIC, or TRAFFIC."""
    known = {name: int(row[f"{name.lower()}_packets"]) for name in ("TCP", "UDP", "ICMP")}
    return {**known, "other": max(0, int(row["packets"]) - sum(known.values()))}


def mix_bar(shares: Sequence[float], cells: int) -> str:
    """`shares` (4,), which add up to one or are NaN, in shades; whatever there is, is seen."""
    if not shares or math.isnan(shares[0]):
        return " " * cells
    widths = [max(1, round(share * cells)) if share > 0 else 0 for share in shares]
    widths[widths.index(max(widths))] += cells - sum(widths)
    return "".join(shade * width for shade, width in zip(_SHADES, widths, strict=True))
