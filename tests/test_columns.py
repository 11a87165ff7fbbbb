"""Names of columns that no dtype has.

mypy checks this module, too. Each comment must hide an error: if mypy no longer knew the columns of
a dtype, it would report the comment as unused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from app.console.live.flows import LIVE
from app.console.live.overview_feed import TRAFFIC
from app.console.live.owners import LIVE_SOCKET
from app.console.live.paths import SERIES
from app.console.screens.paths import hop
from app.exporters.ipfix.records import EXPORTED
from bpf.arrays import Array, Row, Rows
from bpf.sockets.diag import TUPLE
from probes.flow.grouping import GROUP
from probes.flow.records import FLOW
from probes.monitor.records import METRIC, POLICY, TRANSITION
from probes.path.records import HOP, PATH, TRACE
from probes.segment.records import DIGEST
from probes.sockets.records import OWNER, OWNERSHIP, SOCKET

READS = [
    lambda: np.zeros(1, FLOW)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, GROUP)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, HOP)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, PATH)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, TRACE)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, METRIC)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, POLICY)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, TRANSITION)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, SOCKET)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, OWNER)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, OWNERSHIP)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, TUPLE)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, DIGEST)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, EXPORTED)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, LIVE)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, LIVE_SOCKET)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, SERIES)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, TRAFFIC)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, hop.HOP)["packest"],  # type: ignore[index]
    lambda: np.zeros(1, hop.PATH)["packest"],  # type: ignore[index]
    lambda: parts(np.ones(2, FLOW)),
    lambda: part(np.ones(2, FLOW)[0]),
    lambda: changed(np.ones(2, FLOW)),
]
"""Each dtype is a line: mypy sees its type only if no variable stands for several."""


def parts(rows: Rows[FLOW]) -> Array:
    return rows[rows["packets"] > 0]["packest"]  # type: ignore[index]


def part(row: Row[FLOW]) -> float:
    return float(row["packest"])  # type: ignore[index]


def changed(rows: Rows[FLOW]) -> None:
    rows["packest"] = 0  # type: ignore[index]


@pytest.mark.parametrize("read", READS)
def test_no_table_has_an_unknown_column(read: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="no field"):
        read()


def test_no_list_of_columns_has_an_unknown_one() -> None:
    with pytest.raises(KeyError, match="packest"):
        np.ones(2, FLOW)[["bytes", "packest"]]  # type: ignore[index]
