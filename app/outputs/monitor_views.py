"""The tables of the monitor: its metrics, its policies, and their transitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from app.outputs.view import (
    END,
    START,
    WINDOW,
    ColumnType,
    OutputColumn,
    OutputView,
    Part,
    decoded,
    labelled,
    one_text,
    time,
)
from bpf.arrays import Array
from probes.monitor import state
from probes.monitor.records import METRIC_COLUMNS, SCHEMAS, of_others

_STATES = {int(each): each.label for each in state.PolicyState}
_INTERFACE = one_text("interface", "interface of the incoming packets")
_STATE_NAMES = ", ".join(_STATES.values())


def _measured(rows_of: Callable[[Part], Array]) -> Iterator[OutputColumn]:
    """Columns of METRIC_COLUMNS, and of all other protocols."""

    def rest(part: Part, unit: str) -> Any:
        return of_others(rows_of(part), unit).tolist()

    def values(part: Part, name: str) -> Any:
        return rows_of(part)[name].round(1).tolist()

    for one in METRIC_COLUMNS:
        if one.name == "flows":
            for unit in ("packets", "bytes"):
                about = "neither TCP nor UDP nor ICMP"
                yield OutputColumn(f"other_{unit}", about, partial(rest, unit=unit))
        of = ColumnType.FLOAT if one.type == "f8" else ColumnType.INTEGER
        yield OutputColumn(one.name, one.meaning, partial(values, name=one.name), of)


def _known(name: str, meaning: str) -> OutputColumn:
    return OutputColumn(
        name, meaning, type=ColumnType.FLOAT, digits=6,
        known=lambda part: np.isfinite(part.rows[name]),
    )  # fmt: skip


def _is_found(part: Part) -> Array:
    found: Array = part.rows["found_packets"] > 0
    return found


def _found() -> Iterator[OutputColumn]:
    """Columns of a finding; empty without one."""
    column = partial(OutputColumn, known=_is_found)
    share = partial(column, type=ColumnType.FLOAT)
    text = partial(decoded, known=_is_found)
    yield decoded("finding", "who made the policy active, in one line; empty at other transitions")
    yield text("filter", "filter of the flows of the culprit")
    yield column("found_packets", "of the selected flows")
    yield column("found_bytes", "of the selected flows")
    yield column("found_flows", "selected flows")
    yield column("found_lost", "packets of no flow: with any, the counts are lower bounds")
    yield share("found_seconds", "of the windows of flows", digits=3)
    for part in ("source", "destination", "source_port", "port"):
        words = "destination port" if part == "port" else part.replace("_", " ")
        yield column(f"{part}s", f"distinct {words}s")
        yield text(f"top_{part}", f"{words} with the largest share")
        about = "its share of packets, or of flows of a scan, 0 to 1"
        yield share(f"top_{part}_share", about, digits=4)
    yield text("protocol", "protocol with the largest share")
    yield text("flags", "combination of TCP flags of a flow with the largest share")


METRICS = OutputView(
    state.METRICS_TABLE,
    SCHEMAS[state.METRICS_TABLE],
    (WINDOW, START, END, _INTERFACE, *_measured(lambda part: part.rows)),
    state.PROBE,
    state.METRICS_TABLE,
)
TRIGGERS = OutputView(
    state.TRIGGERS_TABLE,
    SCHEMAS[state.TRIGGERS_TABLE],
    (
        WINDOW._replace(meaning="number of the window after which it was published"),
        _INTERFACE,
        time("time", "UTC, ISO 8601: when it was made", "at_ns"),
        decoded("policy", "its name"),
        labelled("before", f"its state: {_STATE_NAMES}", _STATES),
        labelled("after", "its state from then on", _STATES),
        decoded("cause", "reason, with the values"),
        *_measured(lambda part: part.rows["metrics"]),
        *_found(),
    ),
    state.PROBE,
    state.TRIGGERS_TABLE,
)
"""One row a transition, with the metrics of its window, which are 0 if an operator caused it, and
with the finding if the policy began."""
POLICIES = OutputView(
    state.POLICIES_TABLE,
    3,
    (
        WINDOW,
        START,
        END,
        _INTERFACE,
        decoded("policy", "its name"),
        labelled("state", _STATE_NAMES, _STATES),
        time("since", "UTC: start of this state", "since_ns"),
        _known("value", "value of the deciding comparison; empty without one, like the next three"),
        _known("low", "least value at 95 % confidence"),
        _known("high", "largest value at 95 % confidence"),
        _known("threshold", "limit that the value is compared with"),
        OutputColumn(
            "holds",
            "whether the condition holds; of an active policy the one that ends it",
            type=ColumnType.TRUTH,
            text=bool,
        ),
        OutputColumn(
            "certain",
            "whether both ends of the error band give the same answer",
            type=ColumnType.TRUTH,
            text=bool,
        ),
        OutputColumn("selected", "packets of this window that its applications got"),
        OutputColumn(
            "acted", "of this window: dropped or mirrored by its action, or by its dry run"
        ),
        decoded("comparison", "the deciding comparison; its values are in bytes, not in bits"),
    ),
    state.PROBE,
    state.POLICIES_TABLE,
)
