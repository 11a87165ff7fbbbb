"""The probe of sockets on real traffic: owners of a window's flows, and its life beside others."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.lab.netns import inside
from app.outputs.filtering import passing
from app.outputs.owners.owner_join import with_owners
from bpf import features
from bpf.arrays import Array
from bpf.attach import rtnetlink
from bpf.attach.interface import find
from bpf.errors import UsageError
from probes.control.budget_keeper import OWNERS_EVERY
from probes.control.builtin_probes import FLOW_PROBE
from probes.flow.options import FlowOptions
from probes.flow.records import FLOW, FlowDirection
from probes.snapshot import REMOVED, Event, Snapshot
from probes.sockets import probe as sockets_probe
from probes.sockets.holders import SOURCE, Holders, ProcHolders, SocketEvents
from probes.sockets.owners import live
from probes.sockets.owners.live import LiveSources
from probes.sockets.probe import MOST_WAITING, SocketsProbe
from probes.sockets.records import (
    OWNER,
    OWNERSHIP,
    SOCKET,
    By,
    Limit,
    Reason,
    owners_of,
    sockets_of,
)
from tests.app.explain.made import flow
from tests.bpf.cgroups import cgroup, python_in
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck
from tests.support.console.owners import sockets_for

WORKER = """
import json, os, socket, sys
print(os.getpid(), flush=True)
for line in sys.stdin:
    exec(json.loads(line))
    print("done", flush=True)
"""


class Worker:
    """A process that runs lines of Python: the owner of the sockets of a test."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout
        self.pid = int(process.stdout.readline())

    def do(self, code: str) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of cgroup2, to which the probe's programs are attached in place of the root."""
    with cgroup() as folder:
        monkeypatch.setattr(live, "SocketEvents", partial(SocketEvents, folder=folder))
        monkeypatch.setattr(sockets_probe, "LATE_S", 0.02)
        yield folder


@pytest.fixture
def owning(deck: Deck, folder: Path) -> Deck:
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=0))
    deck.controller.switch("sockets", True)
    return deck


class Window:
    """The flows of a window and their owners."""

    def __init__(self, deck: Deck) -> None:
        (self.flows,) = deck.controller.export("flow")
        assert self._wait(deck)
        tables = {
            item.metric: item
            for item in deck.items
            if isinstance(item, Snapshot)
            and (item.probe, item.window) == ("sockets", self.flows.window)
        }
        assert list(tables) == ["sockets", "owners", "ownership"]
        for table in tables.values():
            assert (table.start_ns, table.end_ns) == (self.flows.start_ns, self.flows.end_ns)
        self.owned = with_owners(self.flows, tables.values())
        self.sockets, self.owners, self.ownership = (tables[name].rows for name in tables)
        at = sockets_of(self.flows.rows, self.sockets)
        self.at = at
        owner = np.append(owners_of(self.sockets, self.owners), -1)[at]
        self.tgid = np.append(self.owners["tgid"], 0)[owner]

    def _wait(self, deck: Deck) -> bool:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            tables = [item for item in tuple(deck.items) if isinstance(item, Snapshot)]
            if ("ownership", self.flows.window) in {(each.metric, each.window) for each in tables}:
                return True
            time.sleep(0.005)
        return False

    def check_sums(self) -> None:
        for name in ("packets", "bytes"):
            assert self.ownership[name].sum() == self.flows.rows[name].sum()
        assert self.ownership["flows"].sum() == len(self.flows.rows)

    def of_port(self, port: int) -> tuple[set[int], set[By], set[Reason]]:
        """Owners, sources and reasons of the flows with a port."""
        rows = self.flows.rows
        of = (rows["source_port"] == port) | (rows["destination_port"] == port)
        assert of.any()
        sockets = self.sockets[self.at[of]]
        sources, reasons = (set(sockets[name].tolist()) for name in ("by", "reason"))
        return set(self.tgid[of].tolist()), set(map(By, sources)), set(map(Reason, reasons))

    def check_owner(self, port: int, pid: int, *sources: By) -> None:
        """Check the owner of a port; the pass over descriptors may have seen its socket."""
        owners, by, reasons = self.of_port(port)
        assert (owners, reasons) == ({pid}, {Reason.OWNED})
        assert by <= {By.HOLDS, *sources}


def test_flows_of_processes_are_owned_and_the_rest_has_a_reason(owning: Deck, folder: Path) -> None:
    here, there = owning.right.ipv4, owning.left.ipv4
    with python_in(folder, WORKER) as first, python_in(folder, WORKER) as second:
        server, client = Worker(first), Worker(second)
        server.do(f"listener = socket.create_server(({here!r}, 7001), backlog=5)")
        with inside(owning.left.ns):
            listener = socket.create_server((there, 7002))
            remote = socket.create_connection((here, 7001))
            udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            udp.bind((there, 7003))
        with listener, remote, udp:
            client.do(f"long = socket.create_connection(({there!r}, 7002)); long.send(b'x' * 5000)")
            client.do(
                "short = socket.socket(2, 2); short.bind(('', 7004));"
                f"short.sendto(b'x', ({there!r}, 7003)); short.close()"
            )
            remote.send(b"question")
            window = Window(owning)
            window.check_sums()
            window.check_owner(7002, client.pid, By.OPENED)
            window.check_owner(7004, client.pid, By.OPENED)
            # Nobody has accepted the connection yet.
            window.check_owner(7001, server.pid, By.LISTENER)
            (row,) = window.sockets[window.sockets["far_port"] == 7002]
            assert (row["state"], row["sent"] >= 5000, row["rtt_us"] > 0) == (1, True, True)
            (owner,) = window.owners[window.owners["tgid"] == client.pid]
            assert owner["comm"].startswith(b"python")
            assert owner["uid"] == os.getuid()
            assert owner["bytes"] == window.flows.rows["bytes"][window.tgid == client.pid].sum()
            (kept,) = passing([window.owned], f"proc:python pid:{client.pid} !port:7004 rtt>0")
            assert {*kept.rows["source_port"], *kept.rows["destination_port"]} > {7002}
            assert len(kept.rows) == 2

            server.do("accepted, _ = listener.accept(); accepted.send(b'answer')")
            udp.sendto(b"x", (here, 7005))  # to nobody
            with inside(owning.left.ns), socket.socket() as refused:
                assert refused.connect_ex((here, 7006)) == 111
            window = Window(owning)
            window.check_sums()
            window.check_owner(7001, server.pid, By.LISTENER)
            for port in (7005, 7006):
                assert window.of_port(port) == ({0}, {By.NONE}, {Reason.REFUSED})

            server.do("accepted.close(); listener.close()")
            client.do("long.close()")
            window = Window(owning)
            window.check_owner(7001, server.pid, By.CLOSED)
            window.check_owner(7002, client.pid, By.OPENED)
    assert owning.said("warning", "sockets") == []


def test_the_search_begins_and_ends_by_command(deck: Deck, folder: Path) -> None:
    controller = deck.controller
    with pytest.raises(UsageError, match="no flow probe runs"):
        controller.switch("sockets", True)
    controller.start(FLOW_PROBE, "right", FlowOptions(interval=0))
    controller.switch("sockets", True)
    controller.switch("sockets", True)
    assert deck.info("sockets").programs
    controller.switch("sockets", False)
    controller.switch("sockets", False)
    ended = [item for item in deck.items if isinstance(item, Event) and item.text == REMOVED]
    assert [item.source for item in ended] == ["sockets"]
    controller.export("flow")  # An ended probe takes no window.
    assert not any(isinstance(item, Snapshot) and item.probe == "sockets" for item in deck.items)


def test_the_last_window_of_a_run_has_owners(owning: Deck, folder: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.sendto(b"x", (owning.left.ipv4, 7003))
        owning.controller.close()
    snapshots = [item for item in owning.items if isinstance(item, Snapshot)]
    flows = [item for item in snapshots if item.probe == "flow"]
    (ownership,) = (item for item in snapshots if item.metric == "ownership")
    assert ownership.window == flows[-1].window
    assert ownership.rows["packets"].sum() == flows[-1].rows["packets"].sum() > 0


@pytest.mark.slow
def test_an_edited_source_replaces_both_programs(owning: Deck, folder: Path) -> None:
    controller = owning.controller
    before = owning.info("sockets")
    text = SOURCE.read_text() + "\n/* edited */\n"
    direction = before.config.ingress.model_copy(update={"source": text})
    done = controller.replace(before.config.model_copy(update={"ingress": direction}))
    after = owning.info("sockets")
    assert (done.generation, after.previous) == (2, 1)
    assert after.config.ingress.source == text
    ids = {each.program_id for each in before.programs}
    assert ids.isdisjoint(each.program_id for each in after.programs)
    with python_in(folder, WORKER) as process:
        worker = Worker(process)
        worker.do(f"u = socket.socket(2, 2); u.sendto(b'x', ({owning.left.ipv4!r}, 7003))")
        assert Window(owning).of_port(7003)[0] == {worker.pid}
    assert controller.roll_back("sockets").generation == 3
    assert owning.info("sockets").config == before.config
    assert controller.roll_back("sockets").generation == 4
    assert owning.info("sockets").config.ingress.source == text
    controller.roll_back("sockets")
    other = before.config.model_copy(update={"interval": 5.0})
    with pytest.raises(UsageError, match="only the source can be replaced"):
        controller.replace(other)


def a_window(number: int, rows: Array) -> Snapshot:
    now = time.monotonic_ns()
    return Snapshot("flow", "lo", number, 1, now, now + 1, 0, rows, {}, 0, 0, 0)


def missing(*_: Any, **__: Any) -> Any:
    raise PermissionError("not here")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[SocketsProbe]:
    """A probe without a poller, on a host where most sources are missing."""
    for name in ("SocketEvents", "ClosingSockets", "Conntrack"):
        monkeypatch.setattr(live, name, missing)
    monkeypatch.setattr(Holders, "__init__", _by_proc)
    made = SocketsProbe(None, find("lo"))  # type: ignore[arg-type]
    yield made
    made.close()


def _by_proc(self: Holders, *_: object) -> None:
    self.why_proc, self._source = "no iterator", ProcHolders()


@pytest.fixture
def connection() -> Iterator[Array]:
    """The flow of a connection that is older than the probe."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            rows = np.zeros(1, FLOW)
            rows["source"][:, :4] = rows["destination"][:, :4] = [127, 0, 0, 1]
            rows["source_port"], rows["destination_port"] = client.getsockname()[1], port
            rows["protocol"], rows["version"], rows["direction"] = 6, 4, 1
            rows["packets"], rows["bytes"] = 1, 60
            yield rows


def test_a_missing_source_loses_only_itself(connection: Array, bare: SocketsProbe) -> None:
    bare.take(a_window(1, connection))
    items = bare.export()
    tables = [item.rows for item in items if isinstance(item, Snapshot)]
    assert [each.dtype for each in tables] == [SOCKET, OWNER, OWNERSHIP]
    assert tables[1]["tgid"].tolist() == [os.getpid()]
    said = [item.text for item in items if isinstance(item, Event)]
    assert sorted(each.split(":")[0] for each in said) == sorted(f"no {n}" for n in bare.missing())
    assert len(said) == 4
    bare.take(a_window(2, connection))
    assert not any(isinstance(item, Event) for item in bare.export())


def test_a_lacking_right_is_told_once_a_flow_needs_it(
    connection: Array, bare: SocketsProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flow between two addresses that are not the host's: a container may have one."""
    monkeypatch.setattr(LiveSources, "unreadable", True)
    monkeypatch.setattr(features, "capabilities", frozenset)
    forwarded = connection.copy()
    forwarded["source"][:, :2] = forwarded["destination"][:, :2] = [192, 0]
    told = list[str]()
    for number, rows in enumerate((connection, forwarded, forwarded), 1):
        bare.take(a_window(number, rows))
        events = [item for item in bare.export() if isinstance(item, Event)]
        told += [event.text for event in events if "CAP_" in event.text]
        assert len(told) == (number > 1)
    assert told == ["without CAP_SYS_ADMIN flows of other network namespaces have no owner"]


def test_windows_that_come_too_fast_are_counted(bare: SocketsProbe) -> None:
    rows = np.zeros(0, FLOW)
    for number in range(1, MOST_WAITING + 3):
        bare.take(a_window(number, rows))
    items = bare.export()
    windows = [item.window for item in items if isinstance(item, Snapshot)]
    assert windows == [3, 3, 3, 4, 4, 4]
    assert bare.skipped == 2
    assert any(isinstance(item, Event) and item.text.startswith("2 windows") for item in items)


def test_windows_between_two_looks_are_cut_and_name_no_owner(
    connection: Array, bare: SocketsProbe
) -> None:
    """The step `owners` of the CPU budget."""
    bare.every = OWNERS_EVERY
    owned = {}
    for number in range(1, 2 * OWNERS_EVERY + 1):
        bare.take(a_window(number, connection))
        tables = [item for item in bare.export() if isinstance(item, Snapshot)]
        owned[number] = len(tables[1].rows)
        assert {each.cut for each in tables} == {not owned[number]}
        reasons = tables[2].rows["reason"].tolist()
        assert owned[number] or reasons == [Reason.NOT_ASKED]
        assert tables[2].rows["packets"].sum() == 1
    assert owned == {n: int(not n % OWNERS_EVERY) for n in owned}


def test_a_queue_is_of_the_interface_by_which_packets_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flows = np.concatenate([flow(FlowDirection.EGRESS, 9, port=port) for port in (1, 2, 3)])
    flows["interface"] = ["eth0", "eth1", "eth0@gone"]
    sockets = sockets_for(flows, np.zeros(3, "i8"), limit=Limit.QUEUE)
    numbers = {b"eth0": 1, b"eth1": 2}
    backlogs = {1: ("tbf", 500), 2: ("fq", 7)}

    def number(name: bytes) -> int:
        if name not in numbers:
            raise OSError
        return numbers[name]

    monkeypatch.setattr(socket, "if_nametoindex", number)
    monkeypatch.setattr(rtnetlink, "backlog", backlogs.__getitem__)
    sockets_probe._note_backlogs(flows, sockets)
    found = {int(row["near_port"]): (row["qdisc"], row["backlog"]) for row in sockets}
    assert found == {1: (b"tbf", 500), 2: (b"fq", 7), 3: (b"", 0)}
