"""Sentences about connections that wait: which ones, and how many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.console.live.flows import LiveFlows
from app.console.live.frames import Frame
from app.console.live.owners import LiveOwners
from app.console.live.paths import LivePaths
from app.console.screens.overview.trouble import connection_troubles
from app.console.screens.paths.model import Paths
from bpf.arrays import Array
from probes.flow.records import FLOW
from probes.path.records import PathRowKind
from probes.sockets.records import Limit
from tests.app.console.fake import conversation
from tests.app.console.fake_paths import LAB, SECOND_NS, FakePath, table
from tests.support.console.feed import window
from tests.support.console.owners import POSTGRES, WEB, Process, owner_tables, sockets_for

PROCESSES = WEB, POSTGRES, Process("cron", 77, "cron.service"), Process("ssh", 5, "ssh.service")
NOW_NS = 1000 * SECOND_NS


def sentences(paths: Paths | None = None, **numbers: object) -> list[str]:
    """Sentences about a connection of each process; `numbers` are fields of SOCKET, (4,)."""
    rows = np.concatenate([conversation(n, 300, 30) for n in (1, 2, 3, 4)], dtype=FLOW)
    taken = window(rows, end_ns=NOW_NS)
    sockets = sockets_for(rows, np.array([1, 2, 3, 4]), limit_s=60, sent=[9, 8, 7, 6])
    for name, value in numbers.items():
        sockets[name] = value
    flows, owners = LiveFlows(), LiveOwners()
    flows.add(taken)
    for each in owner_tables(taken, sockets, PROCESSES):
        owners.add(each)
    frame = Frame(flows.view(), LivePaths().view(), (), owners=owners.view())
    return [one.sentence(200) for one in connection_troubles(frame, paths or Paths())]


def names(told: list[str]) -> list[str]:
    return [one.split()[0] for one in told]


def test_the_largest_connections_of_three_processes_are_told() -> None:
    told = sentences(limit=Limit.RECEIVER, rwnd=0.9)
    assert names(told) == ["nginx", "postgres", "cron"]
    assert told[1].startswith("postgres (shop) waits for ")
    assert told[1].endswith(": peer's window 90.0 %, for 1m")
    assert names(sentences(limit=Limit.LOSS, sent=[1, 2, 3, 4])) == ["ssh", "cron", "postgres"]


def test_a_process_has_a_sentence_for_each_limit_with_the_number_of_others() -> None:
    told = sentences(owner=1, limit=[Limit.LOSS, Limit.RECEIVER, Limit.LOSS, Limit.LOSS])
    assert [one.split(": ")[1] for one in told] == [
        "loss, for 1m, and 2 other connections", "peer's window, for 1m",
    ]  # fmt: skip


def test_a_young_verdict_and_a_harmless_one_are_no_news() -> None:
    told = sentences(limit=Limit.READS_SLOWLY, limit_s=[4, 5, 4, 5])
    assert names(told) == ["postgres", "ssh"]
    assert " reads slowly from " in told[0]
    assert not sentences(limit=Limit.APPLICATION)


def test_only_listeners_with_a_full_queue_are_told() -> None:
    """Connections have waiting bytes in these fields, and a listener without a limit has 0."""
    told = sentences(
        state=[10, 10, 1, 10], rqueue=[128, 127, 500, 0], wqueue=[128, 128, 400, 0],
        near_port=[80, 81, 82, 83],
    )  # fmt: skip
    assert told == [
        "nginx (web.service) accepts too slowly: the queue of port 80 is full, 128 connections wait"
    ]


@pytest.mark.parametrize(
    ("kind", "limit"), [(PathRowKind.QUEUE, Limit.QUEUE), (PathRowKind.LOSS, Limit.LOSS)]
)
def test_a_queue_and_a_loss_on_a_traced_path_have_their_hop(
    kind: PathRowKind, limit: Limit
) -> None:
    numbers: dict[str, Any] = {
        "limit": [limit, limit, 0, 0],
        "queue_us": 80_000,
        "far": far("10.94.6.2"),
    }
    path, live, paths = FakePath(LAB), LivePaths(), Paths()
    for second in range(8):
        end_ns = NOW_NS + second * SECOND_NS
        live.add(table(path.second(end_ns - SECOND_NS), end_ns))
    values = {"since_ns": end_ns - SECOND_NS, "responder": "10.94.3.2", "amount_ns": 80_000_000}
    live.add(table(path.change(kind, 3, end_ns, **values), end_ns))
    paths.take(live.view(), ())
    assert all(" at hop 3, " in one for one in sentences(paths, **numbers))
    assert not any(" at hop " in one for one in sentences(**numbers))
    numbers["far"] = far("10.94.6.3")
    assert not any(" at hop " in one for one in sentences(paths, **numbers))


def far(address: str) -> Array:
    """Return far ends (4,) of which the first two are `address`."""
    found = np.zeros((4, 16), "u1")
    found[:2, :4] = list(map(int, address.split(".")))
    found[2:, :4] = 10, 0, 0, 9
    return found
