"""Tables of flows in groups: conversations, hosts, services and networks of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from app.outputs.owners.socket_views import OWNER_COLUMNS
from app.outputs.view import (
    END,
    START,
    WINDOW,
    OutputColumn,
    OutputView,
    Part,
    address,
    addresses,
    flow_column,
    one_text,
    text,
    time,
)
from probes.filter.network import protocol_name
from probes.flow.columns import FLOW_COLUMNS
from probes.flow.grouping import PREFIXES, group
from probes.flow.services import service_name
from probes.snapshot import Snapshot


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
        *OWNER_COLUMNS,
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
