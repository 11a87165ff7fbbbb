"""Names of columns that no dtype has.

mypy checks this module, too. Each comment must hide an error: if mypy no longer knew the columns of
a dtype, it would report the comment as unused.
"""

from __future__ import annotations

import numpy as np
import pytest

from app.console.live.flows import LIVE
from app.console.live.overview_feed import TRAFFIC
from app.console.live.owners import LIVE_SOCKET
from app.console.live.paths import SERIES
from app.console.screens.paths import hop
from app.exporters.ipfix.records import EXPORTED
from bpf.arrays import Row, Rows
from bpf.sockets.diag import TUPLE
from probes.flow.grouping import GROUP
from probes.flow.records import FLOW
from probes.monitor.records import METRIC, POLICY, TRANSITION
from probes.path.records import HOP, PATH, TRACE
from probes.segment.records import DIGEST
from probes.sockets.records import OWNER, OWNERSHIP, SOCKET


def test_no_table_has_an_unknown_column() -> None:
    """Each dtype is a line: mypy sees its type only if no variable stands for several."""
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, FLOW)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, GROUP)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, HOP)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, PATH)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, TRACE)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, METRIC)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, POLICY)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, TRANSITION)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, SOCKET)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, OWNER)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, OWNERSHIP)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, TUPLE)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, DIGEST)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, EXPORTED)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, LIVE)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, LIVE_SOCKET)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, SERIES)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, TRAFFIC)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, hop.HOP)["packest"]  # type: ignore[index]
    with pytest.raises(ValueError, match="no field"):
        np.zeros(1, hop.PATH)["packest"]  # type: ignore[index]


def test_parts_of_a_table_keep_its_columns() -> None:
    def ends(rows: Rows[FLOW], row: Row[FLOW]) -> None:
        with pytest.raises(ValueError, match="no field"):
            rows[rows["packets"] > 0]["packest"]  # type: ignore[index]
        with pytest.raises(KeyError, match="packest"):
            rows[["bytes", "packest"]]  # type: ignore[index]
        with pytest.raises(ValueError, match="no field"):
            rows["packest"] = 0  # type: ignore[index]
        with pytest.raises(ValueError, match="no field"):
            row["packest"]  # type: ignore[index]

    rows = np.ones(2, FLOW)
    ends(rows, rows[0])
