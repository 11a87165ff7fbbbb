"""Rows and strips of screen 4: policies, applications, and counters of the last window."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from app.console.live.overview_feed import TRAFFIC
from app.console.screens.triggers.columns import APPLICATIONS, POLICIES
from app.console.screens.triggers.model import PolicyView, Triggers
from app.console.tables.sorted_table import ItemRows
from app.console.tables.spec import columns
from bpf.arrays import Row
from bpf.quantities import age, bit_rate, percent, si
from probes.monitor.info import MonitorInfo
from probes.monitor.options import Input
from probes.monitor.records import METRIC
from widgets.sparkline import bars, round_scale
from widgets.status import StatusItem
from widgets.table.rows import Column
from widgets.tones import Tone

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

_NAME_CELLS, _CONDITION_CELLS, _RUN_CELLS, _HOST_CELLS = (12, 24), (9, 32), (9, 24), (4, 16)
"""Least and most widths of columns."""
_HALF = "▄ threshold"
_SHADES = "█▓▒░"
"""Shades of TCP, UDP, ICMP and other packets, which need no colors."""
EXAMPLE = "flood: flows > 500 -> heavy_hitters"


def empty_text(info: MonitorInfo | None) -> tuple[str, str]:
    """Return the text of a table without policies, and a hint."""
    if info is None:
        told = "no monitor runs\n\nprobedeck run -i IFACE --policies shipped"
        return told, "a adds policies, which start it here"
    told = "there is no policy: only counters and flows are measured"
    return told, "a adds one, a group of them, or all"


def policy_columns(
    policies: Sequence[Policy], span: float, cells: int, hosts: Collection[str] = ()
) -> tuple[Column[Any], ...]:
    """Return the columns of policies; time lines have `cells` cells and `span` seconds.

    `hosts` are the names of several hosts.
    """
    titles = (f"last {age(span)}, ▄ is the threshold", f"{age(span)} {_HALF}", _HALF)
    title = next((title for title in titles if len(title) <= cells), _HALF)
    # Room for 1.23 Gbit/s, and for a question mark behind it.
    rates = {"value": {"width": 13}, "threshold": {"width": 11}}
    return columns(
        POLICIES,
        policy={"width": _width((one.name for one in policies), _NAME_CELLS)},
        condition={"width": _width((one.when for one in policies), _CONDITION_CELLS)},
        node={"hidden": not hosts, "width": _width(hosts, _HOST_CELLS)},
        line={"title": title},
        runs={"width": _width((", ".join(one.run) for one in policies), _RUN_CELLS)},
        action={"hidden": not any(one.action for one in policies)},
        **(rates if any("bit" in one.when for one in policies) else {}),
    )


def application_columns(triggers: Triggers) -> tuple[Column[Any], ...]:
    info = triggers.info
    names = [one.name for one in info.applications] if info else []
    seen = "Records" if info and info.input is Input.TELEMETRY else "Packets"
    by = (", ".join(triggers.runs(name)) for name in names)
    return columns(
        APPLICATIONS,
        application={"width": _width(names, _NAME_CELLS)},
        packets={"title": seen},
        policies={"width": _width(by, _RUN_CELLS)},
    )


def _width(texts: Iterable[str], cells: tuple[int, int]) -> int:
    least, most = cells
    return max(least, min(most, max(map(len, texts), default=0)))


def policy_rows(policies: Iterable[PolicyView]) -> ItemRows:
    """Return a row for each policy."""
    return ItemRows.of(POLICIES, ((one.key, one) for one in policies))


def application_rows(triggers: Triggers) -> ItemRows:
    """Return a row for each application, with its name as key."""
    known = triggers.info.applications if triggers.info else ()
    return ItemRows.of(
        APPLICATIONS, ((one.name, (one, ", ".join(triggers.runs(one.name)))) for one in known)
    )


def counter_items(triggers: Triggers, cells: int) -> list[StatusItem]:
    """Return rates and distinct flows of the last window, with a time line of `cells` cells."""
    if not triggers.view.metrics:
        return [StatusItem("no window yet", Tone.MUTED)]
    window = triggers.view.metrics[-1]
    counts, seconds = window.rows[0], max(window.seconds, 1e-9)
    flows = triggers.flows(cells)
    scale = round_scale(float(np.nanmax(flows, initial=0.0)))
    line = "".join(text for text, _ in bars(flows, [Tone.ACCENT] * cells, scale))
    band = "..".join(si(counts[end]).replace(" ", "") for end in ("flows_low", "flows_high"))
    host = [StatusItem(triggers.host, Tone.ACCENT)] if triggers.host else []
    return [
        *host,
        StatusItem(si(counts["packets"] / seconds), label="pkt/s"),
        StatusItem(bit_rate(counts["bytes"] * 8 / seconds)),
        StatusItem(si(counts["flows"]), Tone.ACCENT, label="flows"),
        StatusItem(band, Tone.MUTED, priority=1),
        StatusItem(line, Tone.ACCENT, priority=2, label=f"≤{si(scale)}"),
    ]


def share_items(counts: Mapping[str, int], cells: int) -> list[StatusItem]:
    """Return a bar of `cells` cells, and the share of each protocol's packets."""
    total = sum(counts.values())
    shares = [count / total if total else math.nan for count in counts.values()]
    legend = [
        StatusItem(percent(share), Tone.NORMAL if share > 0 else Tone.MUTED, 1, f"{shade} {name}")
        for name, share, shade in zip(counts, shares, _SHADES, strict=True)
    ]
    return [StatusItem(mix_bar(shares, cells), Tone.ACCENT), *legend]


def protocols(row: Row[METRIC] | Row[TRAFFIC]) -> dict[str, int]:
    """Return packets by protocol, of a row of dtype METRIC or TRAFFIC."""
    known = {name: int(row[f"{name.lower()}_packets"]) for name in ("TCP", "UDP", "ICMP")}
    return {**known, "other": max(0, int(row["packets"]) - sum(known.values()))}


def mix_bar(shares: Sequence[float], cells: int) -> str:
    """Return `shares` (4,) in shades, at least a cell for each above zero; NaN shows nothing."""
    if not shares or math.isnan(shares[0]):
        return " " * cells
    widths = [max(1, round(share * cells)) if share > 0 else 0 for share in shares]
    widths[widths.index(max(widths))] += cells - sum(widths)
    return "".join(shade * width for shade, width in zip(_SHADES, widths, strict=True))
