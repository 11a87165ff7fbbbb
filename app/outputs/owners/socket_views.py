"""Tables of the probe of sockets, and the owner's columns of flows and conversations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from app.outputs.view import (
    END,
    START,
    WINDOW,
    CellValue,
    ColumnType,
    OutputColumn,
    OutputView,
    OwnedFlows,
    Part,
    address,
    decoded,
    labelled,
    one_text,
    where,
)
from probes.snapshot import Snapshot
from probes.sockets.records import (
    OWNERS_TABLE,
    OWNERSHIP_TABLE,
    PROBE,
    SOCKETS_TABLE,
    By,
    Limit,
    Owned,
    Reason,
)
from probes.sockets.records import owned_share as share
from probes.tables.flow_columns import OWNER_COLUMNS, FlowColumn

_BY = {int(by): by.label for by in By}
_LIMITS = {int(limit): limit.label for limit in Limit}
_REASONS = {int(reason): reason.column for reason in Reason}
_INTERFACE = one_text("interface", "interface of the packets")


def _owned(
    name: str,
    meaning: str,
    values: Callable[[Owned], Iterable[CellValue]],
    kind: ColumnType = ColumnType.TEXT,
) -> OutputColumn:
    """A column of flows; empty if nobody looks for owners."""

    def of(part: Part) -> Iterable[CellValue]:
        return repeat("") if part.owned is None else values(part.owned)

    return OutputColumn(name, meaning, of, kind)


def _text(of: FlowColumn) -> OutputColumn:
    def texts(owned: Owned) -> Iterable[CellValue]:
        coded = owned.texts(of.name)
        return map(coded.texts.__getitem__, coded.codes.tolist())

    return _owned(of.name, of.meaning, texts)


def _pids(owned: Owned) -> list[Any]:
    tgid = np.append(owned.owners["tgid"], np.uint32(0))[owned.owner]
    return where(tgid > 0, tgid)


def _labels(labels: dict[int, str], field: str) -> Callable[[Owned], Iterable[CellValue]]:
    return lambda owned: map(labels.__getitem__, owned.field(field).tolist())


_PROCESS, *_OTHERS = map(_text, OWNER_COLUMNS)
OWNED_COLUMNS = (
    _PROCESS,
    _owned("pid", "its number on this host", _pids, ColumnType.INTEGER),
    *_OTHERS,
    _owned("owner_by", "source: holds, opened, closed, listener or cgroup", _labels(_BY, "by")),
    _owned(
        "limit",
        "what limits the TCP connection: "
        + ", ".join(label for label in _LIMITS.values() if label),
        _labels(_LIMITS, "limit"),
    ),
)


def owned_share(item: Snapshot) -> float | None:
    """Return the owned share of a window of flows; None: unknown."""
    found = share(item.ownership) if isinstance(item, OwnedFlows) else None
    return None if found is None else round(found, 4)


_share = partial(OutputColumn, type=ColumnType.FLOAT, digits=4)
_COUNTS = (
    OutputColumn("flows", "flows of the window"),
    OutputColumn("packets", "their packets"),
    OutputColumn("bytes", "their bytes, of frames without FCS"),
)
SOCKETS = OutputView(
    SOCKETS_TABLE,
    1,
    (
        WINDOW,
        START,
        END,
        _INTERFACE,
        OutputColumn("ip_version", "4 or 6", lambda part: part.versions),
        OutputColumn("protocol", "IANA protocol number"),
        address("local", "address of this host's end, as the packets show it", "near"),
        OutputColumn("local_port", "of ICMP: the identifier", field="near_port"),
        address("remote", "address of the other end", "far"),
        OutputColumn("remote_port", "of ICMP: type * 256 + code of the request", field="far_port"),
        OutputColumn("owner", "number in the table owners; 0: none"),
        labelled("by", "source that named the owner; empty without one", _BY),
        OutputColumn("nat", "whether addresses are translated", type=ColumnType.TRUTH),
        OutputColumn("holders", "processes that hold the socket, as far as known"),
        labelled("reason", "owned, or why there is no owner", _REASONS),
        OutputColumn("state", "TCP state as the kernel numbers it; 0: unknown"),
        labelled("limit", "what limits the connection; empty if unknown", _LIMITS),
        OutputColumn("limit_s", "seconds since when it is this limit"),
        OutputColumn("cookie", "the kernel's number of the socket"),
        OutputColumn("netns", "inode of its network namespace"),
        OutputColumn("inode", "of the socket; 0: closed, or not accepted"),
        OutputColumn("cgroup", "id of the owner's cgroup, else of the socket's"),
        OutputColumn("uid", "user of the socket"),
        OutputColumn("rtt_us", "smoothed round-trip time"),
        OutputColumn("min_rtt_us", "its minimum of the last minutes"),
        OutputColumn("rttvar_us", "its variation"),
        OutputColumn("cwnd", "congestion window, segments"),
        OutputColumn("mss", "bytes of a segment"),
        OutputColumn("unacked", "segments sent and not acknowledged"),
        OutputColumn("notsent", "bytes that wait to be sent"),
        OutputColumn("rqueue", "bytes that wait for the process; of a listener, connections"),
        OutputColumn("wqueue", "bytes not acknowledged; of a listener, the most that may wait"),
        OutputColumn("delivery_rate", "bytes/s"),
        OutputColumn("app_limited", "whether the process limited this rate", type=ColumnType.TRUTH),
        _share("busy", "share of the window with data to send"),
        _share("rwnd", "share limited by the receiver's window"),
        _share("sndbuf", "share limited by the send buffer"),
        OutputColumn("sent", "bytes of payload sent in the window"),
        OutputColumn("received", "bytes of payload received in the window"),
        OutputColumn("segments", "sent in the window"),
        OutputColumn("retransmitted", "segments sent again in the window"),
        OutputColumn("out_of_order", "segments received out of order in the window"),
        OutputColumn("reordered", "reorderings seen in the window"),
        OutputColumn("rtos", "retransmission timeouts in the window"),
        OutputColumn("drops", "received packets without room in the window"),
        OutputColumn("queue_us", "round-trip time above the path's least"),
    ),
    PROBE,
    SOCKETS_TABLE,
)  # fmt: skip
OWNERS = OutputView(
    OWNERS_TABLE,
    1,
    (
        WINDOW,
        START,
        END,
        OutputColumn("owner", "its number, the same in all windows of a run", field="number"),
        OutputColumn("pid", "the process; 0: only the cgroup is known", field="tgid"),
        OutputColumn("start_ns", "when the process started, CLOCK_BOOTTIME"),
        OutputColumn("uid", "its user's number"),
        decoded("user", "its user's name"),
        decoded("process", "its name", "comm"),
        decoded("unit", "its unit of systemd"),
        decoded("container", "its container"),
        decoded("pod", "its pod"),
        OutputColumn("netns", "inode of the sockets' network namespace"),
        *_COUNTS,
    ),
    PROBE,
    OWNERS_TABLE,
)  # fmt: skip
OWNERSHIP = OutputView(
    OWNERSHIP_TABLE,
    1,
    (
        WINDOW,
        START,
        END,
        labelled("reason", "owned, or why there is no owner: " + ", ".join(
            _REASONS.values()), _REASONS),
        *_COUNTS,
    ),
    PROBE,
    OWNERSHIP_TABLE,
)  # fmt: skip
SOCKET_VIEWS = (SOCKETS, OWNERS, OWNERSHIP)
