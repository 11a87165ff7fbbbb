"""Fields of the row under the cursor, for own commands; see app.commands.own."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from app.console.screen import ConsoleScreen
from app.console.screens.events.columns import EVENTS
from app.console.screens.flows.part import ShownFlows
from app.console.screens.flows.screen import FlowsScreen
from app.console.screens.overview.rows import WORST_HOPS
from app.console.screens.overview.screen import OverviewScreen
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.screen import PathsScreen
from app.console.screens.programs.maps import MapKey
from app.console.screens.programs.model import Slot
from app.console.tables.array_rows import EachRow
from bpf.arrays import Row
from probes.filter.hosts import address_text, protocol_name
from probes.flow.records import FLOW, FlowDirection
from probes.path.options import TracedFlow
from probes.path.records import DESTINATION_HOP
from probes.tables.flow_columns import WITH_PORTS
from widgets.table.table import VirtualTable

_SENT = {"local": "source", "remote": "destination"}
"""Ends of a flow, as this host sends it."""


def fields_of(screen: ConsoleScreen) -> dict[str, str]:
    """Return the fields of the row under the cursor, by name."""
    found, names = {}, screen.console.names
    if isinstance(screen, FlowsScreen):
        if (row := screen.row_under_cursor()) is not None:
            found = _of_group(row) if row.groups.by.is_grouped else _of_flow(row.row)
    elif isinstance(screen, PathsScreen):
        found = _of_path(screen)
    else:
        found = _of_table(screen)
    address = found.get("address")
    if address and "name" not in found and (known := names.of(address)) is not None:
        found["name"] = known.text
    return {name: text for name, text in found.items() if text}


def _of_table(screen: ConsoleScreen) -> dict[str, str]:
    """Fields of the table with the focus, or else of the first."""
    tables = [screen.focused, *screen.query(VirtualTable)]
    for table in (each for each in tables if isinstance(each, VirtualTable) and each.display):
        source, at = table.source, table.cursor_index
        if at >= source.rows:
            break
        key = source.key(at)
        if isinstance(source, ShownFlows):
            return _of_group(source.at(np.array([at])))
        if isinstance(source, EachRow) and source.spec is EVENTS:
            return {"text": source.content["event"][at].text}
        if table.id == "hops":
            cells = dict(zip(WORST_HOPS.names, source.cells(at), strict=True))
            return _of_hop(key) | {"address": str(cells["address"])}
        return _of_sentence(screen, key) if table.id == "now" else _of_key(table.id, key)
    return {}


def _of_key(table: str | None, key: Hashable) -> dict[str, str]:
    """Fields of a policy, an application, a program, or a map."""
    if isinstance(key, MapKey):
        return {"probe": key.probe, "side": key.side, "map": key.map}
    if isinstance(key, Slot):
        return {"probe": key.probe, "side": key.side}
    kind = {"policies": "policy", "applications": "application"}.get(table or "")
    return {kind: key} if kind and isinstance(key, str) else {}


def _of_hop(key: Hashable) -> dict[str, str]:
    """Fields of a path and the number of its hop."""
    if not (isinstance(key, tuple) and isinstance(key[0], PathKey)):
        return {}
    destination, number = key[0].destination, key[1]
    hop = {} if number == DESTINATION_HOP else {"hop": str(number)}
    return {"destination": destination, "remote": destination, **hop}


def _of_sentence(screen: ConsoleScreen, key: Hashable) -> dict[str, str]:
    """Return the text of a sentence of the Overview, and the fields of its subject."""
    assert isinstance(screen, OverviewScreen)
    for one in screen.troubles:
        if one.key == key:
            about = {"triggers": "policies"}.get(one.screen)
            return {"text": one.text} | _of_hop(one.row) | _of_key(about, one.row)
    return {}


def _of_flow(row: Row[FLOW]) -> dict[str, str]:
    leaves = row["direction"] == FlowDirection.EGRESS
    ends = ("source", "destination") if leaves else ("destination", "source")
    version, protocol = int(row["version"]), int(row["protocol"])
    found = {"protocol": protocol_name(protocol)}
    for name, end in zip(_SENT, ends, strict=True):
        found[name] = found[end] = address_text(row[end].tobytes(), version)
        if protocol in WITH_PORTS:
            found[f"{name}_port"] = found[f"{end}_port"] = str(row[f"{end}_port"])
    return found | {"address": found["remote"]}


def _of_group(group: ShownFlows) -> dict[str, str]:
    row, kind = group.row, group.kind
    if kind == "networks":
        return {"network": group.networks()[0]}
    if kind == "hosts":
        end = "local" if row["near"].any() else "remote"
        (address,) = group.hosts()
        return {"address": address, end: address, _SENT[end]: address}
    port = int(row["service_port"])
    found = {"protocol": group.protocols()[0], "port": str(port) if port else ""}
    if kind == "conversations":
        version = int(row["version"])
        for name, end in (("local", "near"), ("remote", "far")):
            found[name] = found[_SENT[name]] = address_text(row[end].tobytes(), version)
            found[f"{name}_port"] = found[f"{_SENT[name]}_port"] = group.ports(f"{end}_port")[0]
        found["address"] = found["remote"]
    return found


def _of_path(screen: PathsScreen) -> dict[str, str]:
    """Fields of the path, and of the hop under the cursor."""
    if (choice := screen.choice) is None:
        return {}
    found = {"destination": choice.destination, "remote": choice.destination}
    if choice.flow is not None:
        found |= _of_traced(choice.flow)
    hop = screen.hop_under_cursor()
    if hop is not None:
        found["hop"] = str(hop["ttl"] or "")
        routers = [router.address for router in hop["routers"]]
        found["address"] = choice.destination if hop["is_end"] else next(iter(routers), "")
    return found


def _of_traced(flow: TracedFlow) -> dict[str, str]:
    found = {"protocol": protocol_name(flow.protocol)}
    if flow.protocol in WITH_PORTS:
        near, far = str(flow.source_port), str(flow.destination_port)
        found |= {"source_port": near, "local_port": near}
        found |= {"destination_port": far, "remote_port": far}
    return found
