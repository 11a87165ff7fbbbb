"""The tables that can be written. The number in a schema, `flows/3`, counts changes of columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from app.outputs.monitor_views import METRICS, POLICIES, TRIGGERS
from app.outputs.owners.socket_views import OWNED_COLUMNS, SOCKET_VIEWS, owned_share
from app.outputs.path_views import HOPS, PATHS, TRACES
from app.outputs.view import (
    END,
    START,
    WINDOW,
    ColumnType,
    Exported,
    OutputColumn,
    OutputView,
    Part,
    address,
    addresses,
    decoded,
    flow_column,
    is_table,
    iso,
    labelled,
    one,
    one_text,
    text,
    time,
)
from probes.filter.hosts import protocol_name
from probes.flow.grouping import PREFIXES, group
from probes.flow.kinds import INTERFACES, REPEATED
from probes.flow.records import FlowDirection
from probes.flow.services import service_name
from probes.snapshot import Event, LossReason, Snapshot
from probes.tables.flow_columns import FLOW_COLUMNS, SCHEMAS

DIRECTIONS: dict[int, str] = {FlowDirection.INGRESS: "in", FlowDirection.EGRESS: "out"}


def counted(item: Snapshot) -> tuple[int, int] | None:
    """Packets and bytes in the rows of the flow probe; None for any other table."""
    if not is_table(item, "flow", ""):
        return None
    return int(item.rows["packets"].sum()), int(item.rows["bytes"].sum())


def _lost(reason: LossReason) -> OutputColumn:
    def packets(item: Snapshot) -> int:
        loss = item.losses.get(reason)
        return loss.packets if loss else 0

    return one(reason.column, reason.about, packets)


def _sum(name: str, at: int) -> OutputColumn:
    meaning = "sum over the rows of the flow probe; empty for others"
    return one(name, meaning, lambda item: (counted(item) or (None, None))[at])


def _peaks(*, each: bool) -> Iterator[OutputColumn]:
    """Yield the columns of peaks: of `each` row's interface, or of the busiest one."""
    for direction, way in DIRECTIONS.items():

        def bits(
            part: Part, side: str = FlowDirection(direction).name.lower()
        ) -> Iterator[int | None]:
            peaks = [(x.interface.encode(), x.bits) for x in part.item.peaks if x.direction == side]
            for row in part.rows:
                own = (bits for name, bits in peaks if not each or name == row["interface"])
                yield round(largest) if (largest := max(own, default=0.0)) else None

        yield OutputColumn(
            f"peak_{way}_bps", f"largest bits per second of some 8 ms, `{way}`", bits
        )


def _listed(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(filter(None, texts)))


_FLOW = (
    decoded("interface", "interface that counts the packets"),
    labelled("direction", "in or out, seen from this host", DIRECTIONS),
    OutputColumn("ip_version", "4 or 6", lambda part: part.versions),
    OutputColumn("protocol", "IANA protocol number"),
    address("source", "address"),
    OutputColumn("source_port", "of ICMP: the identifier of echo and the like; 0: no ports"),
    address("destination", "address"),
    OutputColumn("destination_port", "of ICMP: type * 256 + code"),
    OutputColumn("packets", "in this window"),
    OutputColumn("bytes", "in this window, of frames without FCS"),
    OutputColumn("tcp_flags", "all flags seen in this window, by OR; 0 unless TCP"),
    time("first", "UTC: first packet in this window, to a millisecond", "first_ns"),
    time("last", "UTC: last packet in this window, to a millisecond", "last_ns"),
    *map(flow_column, FLOW_COLUMNS),
)
FLOWS = OutputView(
    "flows",
    SCHEMAS["flows"],
    (
        WINDOW,
        START,
        END,
        *_FLOW,
        *OWNED_COLUMNS,
    ),
    "flow",
)
REPEATED_FLOWS = OutputView(
    REPEATED, SCHEMAS[REPEATED], (WINDOW, START, END, *_FLOW), "flow", REPEATED
)
INTERFACE_TOTALS = OutputView(
    INTERFACES,
    2,
    (
        WINDOW,
        START,
        END,
        decoded("interface", "its name"),
        OutputColumn("in_packets", "packets that count as `in` here"),
        OutputColumn("in_bytes", "bytes of these frames, without FCS"),
        OutputColumn("out_packets", "packets that count as `out` here"),
        OutputColumn("out_bytes", "bytes of these frames, without FCS"),
        OutputColumn("repeated_in_packets", "incoming packets that another interface counts"),
        OutputColumn("repeated_in_bytes", "bytes of these frames, without FCS"),
        OutputColumn("repeated_out_packets", "outgoing packets that another interface counts"),
        OutputColumn("repeated_out_bytes", "bytes of these frames, without FCS"),
        *_peaks(each=True),
    ),
    "flow",
    INTERFACES,
)
WINDOWS = OutputView(
    "windows",
    7,
    (
        WINDOW,
        START,
        END,
        one("start_monotonic_ns", "CLOCK_MONOTONIC", lambda item: item.start_ns),
        one("end_monotonic_ns", "CLOCK_MONOTONIC", lambda item: item.end_ns),
        one_text("interface", "measured interface"),
        one_text("probe", "probe that measured"),
        one_text("side", "ingress or egress, of a metric; empty for a built-in probe's tables"),
        one_text("metric", "the metric or table, each has a row; empty for flows"),
        one("generation", "number of the program, from 1: one more at each reconfiguration"),
        one("rows", "rows of the table", lambda item: len(item.rows)),
        _sum("packets", 0),
        _sum("bytes", 1),
        *map(_lost, LossReason),
        one("export", "rows of this table that could not be written to its file",
            lambda item: item.unwritten if isinstance(item, Exported) else 0),
        one("occupancy", "of the fullest table at the end, 0 to 1",
            lambda item: round(item.occupancy, 4), ColumnType.FLOAT),
        one("swap_us", "microseconds from the swap to the end of the grace period",
            lambda item: item.swap_ns // 1000),
        one("drain_us", "microseconds from the grace period until the rows were drained",
            lambda item: item.drain_ns // 1000),
        one_text("hooks", "each hook, and how it is attached",
            lambda item: "; ".join(f"{each.hook} {each.mode}" for each in item.hooks)),
        one_text("hook_reason", "why these hooks; empty if the operator asked for them",
            lambda item: _listed(each.reason for each in item.hooks)),
        one_text("runs_before", "programs of others that saw the packets first",
            lambda item: _listed(name for each in item.hooks for name in each.before)),
        one("owned", "of flows: share of the bytes with an owner, of those that are not forwarded, "
            "0 to 1; empty without", owned_share, ColumnType.FLOAT),
        *_peaks(each=False),
    ),
)  # fmt: skip
EVENTS = OutputView(
    "events",
    2,
    (
        one("time", "UTC, ISO 8601", lambda event: iso(event.utc_ns), ColumnType.TIME),
        one_text("severity", "info, warning or error"),
        one_text("source", "interface, probe or part of the program"),
        one_text("text", "the event in words"),
        one_text("subject", "what it is about, the same in all events of one story; may be empty"),
        one_text("phase", "begin or end of something that lasts; otherwise empty"),
        one("value", "measured amount; empty without one", type=ColumnType.FLOAT),
        one_text("unit", "unit of value"),
    ),
    kind=Event,
)


def grouped(flows: Snapshot, kind: str, prefixes: Sequence[int] = PREFIXES) -> Snapshot:
    """Return a window of flows as a table of groups, of dtype GROUP, with the name of the kind."""
    return replace(flows, metric=kind, rows=group(flows.rows, kind, prefixes).rows)


def with_prefixes(view: OutputView, prefixes: Sequence[int]) -> OutputView:
    """Return the view with networks of these lengths; any other view unchanged."""
    if view.name != "networks":
        return view
    return replace(view, make=partial(grouped, kind=view.name, prefixes=prefixes))


def _services(part: Part) -> list[str]:
    numbers = (part.rows[name].tolist() for name in ("protocol", "service_port"))
    return list(map(service_name, *numbers))


def _networks(part: Part) -> list[str]:
    texts = addresses(part.rows["far"], part.versions)
    return [f"{a}/{n}" for a, n in zip(texts, part.rows["prefix"].tolist(), strict=True)]


def _view(kind: str, *columns: OutputColumn, version: int = 1) -> OutputView:
    common = WINDOW, START, END, one_text("interface", "interface of the packets")
    make = partial(grouped, kind=kind)
    return OutputView(kind, version, (*common, *columns), "flow", kind, make=make)


_VERSION = OutputColumn("ip_version", "4 or 6", lambda part: part.versions)
_PROTOCOL = (
    OutputColumn("protocol", "IANA protocol number"),
    text("protocol_name", "tcp, udp, ... or the number",
        lambda part: map(protocol_name, part.rows["protocol"].tolist())),
)  # fmt: skip
_SERVICE = text("service", "service by port, such as https or udp/40001", _services)
_CONVERSATIONS = OutputColumn("conversations", "conversations of the group", field="flows")
_COUNTS = (
    OutputColumn("in_packets", "packets to this host"),
    OutputColumn("in_bytes", "bytes of these frames, without FCS"),
    OutputColumn("out_packets", "packets from this host"),
    OutputColumn("out_bytes", "bytes of these frames, without FCS"),
)
_TIMES = (
    time("first", "UTC: first packet in this window, to a millisecond", "first_ns"),
    time("last", "UTC: last packet in this window, to a millisecond", "last_ns"),
)
GROUP_VIEWS = (
    _view(
        "conversations",
        _VERSION,
        *_PROTOCOL,
        address("local", "address of this host's end", "near"),
        OutputColumn("local_port", "of ICMP: the identifier; 0: no ports", field="near_port"),
        address("remote", "address of the other end", "far"),
        OutputColumn("remote_port", "of ICMP: type * 256 + code of the request", field="far_port"),
        _SERVICE,
        *_COUNTS,
        OutputColumn("tcp_flags", "all flags of both directions, by OR"),
        *_TIMES,
        *(flow_column(column) for column in FLOW_COLUMNS if column.is_key),
        *OWNED_COLUMNS,
        version=2,
    ),
    _view(
        "hosts",
        _VERSION,
        address("remote", "address of the other end", "far"),
        *_COUNTS,
        _CONVERSATIONS,
        *_TIMES,
    ),
    _view(
        "services",
        *_PROTOCOL,
        OutputColumn("port", "port that serves; 0: the protocol has no ports",
            field="service_port"),
        _SERVICE,
        *_COUNTS,
        _CONVERSATIONS,
        *_TIMES,
    ),
    _view(
        "networks",
        _VERSION,
        text("network", "prefix of addresses of the other ends", _networks),
        *_COUNTS,
        _CONVERSATIONS,
        *_TIMES,
    ),
)  # fmt: skip
VIEWS = {
    view.name: view
    for view in (
        FLOWS, REPEATED_FLOWS, INTERFACE_TOTALS, *GROUP_VIEWS, HOPS, PATHS, TRACES, METRICS,
        TRIGGERS, POLICIES, *SOCKET_VIEWS, WINDOWS, EVENTS,
    )
}  # fmt: skip
_BUILT_IN = {(view.probe, view.table): view for view in VIEWS.values() if view.probe}


def built_in(item: Snapshot) -> OutputView:
    """Return the view of a built-in probe's snapshot."""
    return _BUILT_IN[item.probe, item.metric]
