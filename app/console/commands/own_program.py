"""Programs of the user's: fields of the row under the cursor, and a run with limits."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress

import numpy as np

from app.console.screen import ConsoleScreen
from app.console.screens.events.columns import EVENTS
from app.console.screens.flows.rows import ShownFlows
from app.console.screens.flows.screen import FlowsScreen
from app.console.screens.overview.rows import WORST_HOPS
from app.console.screens.overview.screen import OverviewScreen
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.screen import PathsScreen
from app.console.screens.programs.maps import MapKey
from app.console.screens.programs.model import Slot
from app.console.tables.sorted_table import EachRow
from app.files import environment_of, invoker, rights_of
from bpf.arrays import Row
from bpf.errors import UsageError, current
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


MOST_BYTES = 1 << 20
SECONDS = 60.0
_LOOK_S = 0.25
"""Seconds between two checks of the time, while the program writes nothing."""


def run(words: Sequence[str], heard: Callable[[bytes], object]) -> str:
    """Run a program; return in words how it ended. Raises UsageError if it does not start.

    `heard` receives its output and errors. The end kills its process group, and so does the
    cancellation of this thread's work.
    """
    who = invoker()
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            bufsize=0, start_new_session=True, env=environment_of(who), **rights_of(who),
        )  # fmt: skip
    except OSError as error:
        raise UsageError(f"{words[0]}: {error.strerror}") from None

    def kill() -> None:
        # Until wait() below the number is taken, also after the program's end.
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)

    cut = ""
    try:
        with current().on_cancel(kill):
            cut = _hear(process, heard)
            kill()
    finally:
        kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # it may wait for a disk
        assert process.stdout is not None
        process.stdout.close()
    current().check()
    code = process.returncode
    if code is None:
        return cut or "it does not end"
    return cut or (f"exit code {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}")


def _hear(process: subprocess.Popen[bytes], heard: Callable[[bytes], object]) -> str:
    """Pass on the output until the program ends; return why it must end, or an empty text."""
    assert process.stdout is not None
    output, end = process.stdout.fileno(), os.pidfd_open(process.pid)
    left, deadline, cancel = MOST_BYTES, time.monotonic() + SECONDS, current()
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            selector.register(end, selectors.EVENT_READ)
            while not cancel.asked:
                if (time_left := deadline - time.monotonic()) <= 0:
                    return f"ended after {SECONDS:g} s"
                ready = [key.fd for key, _ in selector.select(min(time_left, _LOOK_S))]
                if output in ready:
                    part = os.read(output, min(left, 1 << 16))
                    if not part:
                        selector.unregister(output)
                    elif not (left := left - len(part)):
                        heard(part)
                        return f"ended after {MOST_BYTES >> 20} MiB of output"
                    else:
                        heard(part)
                elif end in ready:
                    break
    finally:
        os.close(end)
    return ""
