"""Owners in written tables: flows wait for them, and keep their columns without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.console.live.owners import OwnerView
from app.outputs.filtering import Filtering, passing
from app.outputs.owners.owner_join import OwnerJoin, with_owners
from app.outputs.sink import Sink
from app.outputs.view import OwnedFlows
from app.outputs.views import VIEWS
from bpf.arrays import Array
from probes.monitor.owners.window import OwnerWindow
from probes.monitor.selected import SelectedMetric
from probes.snapshot import REMOVED, Event, Item, Snapshot
from probes.sockets.records import OWNER, OWNERSHIP, SOCKET, By, Limit, Reason, owned_share
from tests.probes.flow.test_grouping import HERE, THERE, both
from tests.probes.sockets.test_joined import sockets


def table(probe: str, window: int, rows: Array, metric: str = "") -> Snapshot:
    return Snapshot(probe, "eth0", window, 1, 0, 10**9, 10**18, rows, {}, 0, 0, 0, metric=metric)


def flows(window: int) -> Snapshot:
    rows = [both(HERE, THERE, port, 443) for port in (40001, 40002)]
    return table("flow", window, np.concatenate(rows))


def answers(window: int) -> Iterator[Snapshot]:
    """Tables of the socket probe for one of two connections: it has an owner."""
    rows = sockets(both(HERE, THERE, 40001, 443))
    rows["owner"], rows["by"], rows["limit"] = 5, By.OPENED, Limit.QUEUE
    owner = np.zeros(1, OWNER)
    owner["number"], owner["tgid"], owner["comm"], owner["user"] = 5, 77, b"nginx", b"www"
    ownership = np.zeros(3, OWNERSHIP)
    ownership["reason"] = Reason.OWNED, Reason.FORWARDED, Reason.NOT_ASKED
    ownership["bytes"] = 300, 999, 100
    for name, each in (("sockets", rows), ("owners", owner), ("ownership", ownership)):
        yield table("sockets", window, each, name)


def taken(join: OwnerJoin, *items: Item) -> list[tuple[str, bool]]:
    """Names of the written tables, and whether they have owners."""
    written = [out for item in items for out in join.take(item)]
    return [
        (item.metric or "flows", isinstance(item, OwnedFlows))
        if isinstance(item, Snapshot)
        else (item.text, False)
        for item in written
    ]


def test_flows_wait_for_their_owners() -> None:
    join = OwnerJoin(lambda: True)
    assert taken(join, flows(1)) == []
    assert taken(join, *answers(1)) == [
        ("sockets", False), ("owners", False), ("ownership", False), ("flows", True),
    ]  # fmt: skip
    # Answers are late: the oldest window goes on without them.
    assert taken(join, flows(2), flows(3), flows(4)) == [("flows", False)]
    # Nobody answers window 3.
    assert [owned for name, owned in taken(join, *answers(4)) if name == "flows"] == [False, True]
    assert taken(join, flows(5)) == []
    removed = Event.now("info", "sockets", REMOVED)
    assert taken(join, removed) == [("flows", False), (REMOVED, False)]


def test_without_a_probe_flows_pass_at_once() -> None:
    assert taken(OwnerJoin(lambda: False), flows(1)) == [("flows", False)]
    ending = iter([True, False])
    join = OwnerJoin(lambda: next(ending))
    assert taken(join, flows(1), flows(2)) == []
    assert len(list(join.rest())) == 2


def test_the_columns_of_owners(tmp_path: Path) -> None:
    views = [VIEWS[name] for name in ("flows", "conversations", "windows", "sockets", "owners",
                                      "ownership")]  # fmt: skip
    join = OwnerJoin(lambda: True)
    with Sink(str(tmp_path), "csv", views) as sink:
        for item in (flows(1), *answers(1)):
            for each in join.take(item):
                sink.write(each)
    lines = {
        name: (tmp_path / f"{name}.csv").read_text().splitlines()[1:]
        for name in (view.name for view in views)
    }
    ends = sorted(",".join(line.split(",")[-8:]) for line in lines["flows"])
    assert ends == [",,,,,,,", ",,,,,,,", *2 * ["nginx,77,www,,,,opened,queue"]]
    ends = sorted(",".join(line.split(",")[-8:]) for line in lines["conversations"])
    assert ends == [",,,,,,,", "nginx,77,www,,,,opened,queue"]
    (window,) = (line for line in lines["windows"] if ",flow," in line)
    assert window.endswith(",0.75,,")
    assert lines["ownership"][1].endswith(",forwarded,0,0,999")
    (owner,) = lines["owners"]
    assert ",5,77,0,0,www,nginx,,,,0,0,0,0" in owner
    (line,) = lines["sockets"]
    assert ",4,6,192.0.2.1,40001,198.51.100.7,443,5,opened,false,0,owned,0,queue,0," in line


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("proc:nginx", {40001}),
        ("pid:77 user:www limit:queue port:443", {40001}),
        ("!proc:nginx", {40002}),
        ("proc:nginx or port:40002", {40001, 40002}),
        ("rtt>20ms retrans>10%", {40001}),
        ("rtt<20ms or unit:nginx or pod:x or container:x", set()),
    ],
)
def test_flows_and_conversations_are_filtered_by_owners(
    tmp_path: Path, text: str, ports: set[int]
) -> None:
    asked, owners, ownership = answers(1)
    rows = asked.rows.copy()
    rows["rtt_us"], rows["segments"], rows["retransmitted"] = 30_000, 10, 2
    sockets = replace(asked, rows=rows)
    names = ("flows", "conversations")
    filtering, join = Filtering.of(text, names, {}), OwnerJoin(lambda: True)
    with Sink(str(tmp_path), "csv", [VIEWS[name] for name in names], keep=filtering.kept) as sink:
        for item in (flows(1), sockets, owners, ownership):
            for each in join.take(item):
                sink.write(each)
    (found,) = passing([with_owners(flows(1), (sockets, owners, ownership))], text)
    both_ways = found.rows["source_port"], found.rows["destination_port"]
    assert {*np.concatenate(both_ways).tolist()} - {443} == ports
    assert len(found.rows) == 2 * len(ports)
    for name, count in (("flows", 2), ("conversations", 1)):
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()[1:]
        assert len(lines) == count * len(ports)
        assert {port for port in (40001, 40002) if any(f",{port}," in line for line in lines)} == (
            ports
        )


def test_flows_have_the_owners_of_their_own_window_only() -> None:
    first = flows(1)
    assert with_owners(first, answers(2)) is first
    assert with_owners(first, list(answers(1))[:2]) is first
    (found,) = passing([first], "proc:nginx")
    assert not len(found.rows)


def test_the_owned_share_is_one_number_everywhere() -> None:
    rows = np.zeros(4, OWNERSHIP)
    rows["reason"] = Reason.OWNED, Reason.SEVERAL, Reason.FORWARDED, Reason.KERNEL
    rows["bytes"], rows["packets"] = (500, 250, 9000, 250), (1, 1, 1, 7)
    tables = {item.metric: item for item in answers(1)}
    tables["ownership"] = replace(tables["ownership"], rows=rows)
    written = VIEWS["windows"].records(OwnedFlows.of(flows(1), tables), nested=True)
    sockets, owners, _ = (tables[name].rows for name in tables)
    condition = OwnerWindow(sockets, owners, rows, 1.0, 0).value(SelectedMetric("owned", ""), 1.0)
    (record,) = written
    assert isinstance(record, dict)
    shares = (OwnerView(ownership=rows).share, record["owned"], condition.value)
    assert shares == (0.75, 0.75, 0.75)
    assert OwnerView(ownership=rows).help()[0].startswith("Owned 75.0 % of ")


@pytest.mark.parametrize("reasons", [(), (Reason.FORWARDED,)])
def test_without_local_bytes_no_share_is_known(reasons: tuple[Reason, ...]) -> None:
    rows = np.zeros(len(reasons), OWNERSHIP)
    rows["reason"], rows["bytes"] = reasons, 10
    assert owned_share(rows) is None
    assert SOCKET.itemsize < 204  # A window of 5,000 sockets is a megabyte of the history.
