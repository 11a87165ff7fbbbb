"""Tables of the monitor: what each column says, and which of them are written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from app.outputs.document import document
from app.outputs.sink import Sink
from app.outputs.views import VIEWS
from app.run.options import Options, OutputSpec
from app.run.totals import Totals
from probes.monitor.records import METRIC, POLICY, TRANSITION
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE, PolicyState
from probes.snapshot import Loss, LossReason
from tests.app.outputs.test_metric_files import flows, metric, narrow
from tests.support import monitors
from tests.support.tables import records_in, rows_in

MEASURED = (
    "packets,bytes,tcp_packets,tcp_bytes,udp_packets,udp_bytes,icmp_packets,icmp_bytes,"
    "other_packets,other_bytes,flows,flows_low,flows_high,"
    "syn_packets,syn_ack_packets,fin_packets,rst_packets,fragment_packets,protocols,"
    "arp_request_packets,arp_reply_packets"
)
VALUES = "20,2000,8,800,5,500,3,300,4,400,812.4,770.0,859.0,4,3,2,1,6,5,2,1"
START, END = "2025-12-31T23:59:59.123456789Z", "2026-01-01T00:00:00.123456789Z"


def written(directory: Path, name: str, *items: Any) -> list[str]:
    with Sink(str(directory), "csv", [VIEWS[name]]) as sink:
        for item in items:
            sink.write(item)
    return (directory / f"{name}.csv").read_text().splitlines()


def test_the_columns_of_metrics(tmp_path: Path) -> None:
    """S2.6, S2.7: a row a window; what is of no protocol, and the estimate with its band."""
    assert written(tmp_path, METRICS_TABLE, monitors.metrics(), monitors.metrics(window=2)) == [
        f"schema,window,start,end,interface,{MEASURED}",
        f"metrics/3,1,{START},{END},eth0,{VALUES}",
        f"metrics/3,2,{START},{END},eth0,{VALUES}",
    ]


FOUND = (
    "finding,filter,found_packets,found_bytes,found_flows,found_lost,found_seconds,"
    "sources,top_source,top_source_share,destinations,top_destination,top_destination_share,"
    "source_ports,top_source_port,top_source_port_share,ports,top_port,top_port_share,"
    "protocol,flags"
)


def test_the_columns_of_triggers(tmp_path: Path) -> None:
    """S2.11: one row per transition, with its cause; a begin also with its finding."""
    cause = monitors.CAUSE.replace('"', '""')
    item = monitors.triggers(PolicyState.ACTIVE, PolicyState.COOLDOWN)
    rows = item.rows.copy()
    for name, value in zip(
        FOUND.split(","),
        ("192.0.2.7 scans", "src:192.0.2.7", 300, 18000, 300, 0, 0.98765, 1, "192.0.2.7", 1.0, 2,
         "10.0.0.1", 2 / 3, 1, "tcp:50000", 1.0, 300, "tcp:80", 1 / 300, "tcp", "SYN"),
        strict=True,
    ):  # fmt: skip
        rows[name][0] = value
    at = "2026-01-01T00:00:00.122456789Z"
    assert written(tmp_path, TRIGGERS_TABLE, monitors.table(TRIGGERS_TABLE, rows)) == [
        f"schema,window,interface,time,policy,before,after,cause,{MEASURED},{FOUND}",
        f'triggers/3,1,eth0,{at},flood,armed,active,"{cause}",{VALUES},192.0.2.7 scans,'
        "src:192.0.2.7,300,18000,300,0,0.988,1,192.0.2.7,1.0,2,10.0.0.1,0.6667,"
        "1,tcp:50000,1.0,300,tcp:80,0.0033,tcp,SYN",
        f'triggers/3,1,eth0,{at},flood,active,cool-down,"{cause}",{VALUES}{"," * 21}',
    ]


def test_the_columns_of_policies(tmp_path: Path) -> None:
    """S2.12, S2.23: where each policy stands after each window."""
    since = "2025-12-31T23:59:58.123456789Z"
    assert written(
        tmp_path, POLICIES_TABLE, monitors.policies(PolicyState.OFF, PolicyState.HOLD)
    ) == [
        "schema,window,start,end,interface,policy,state,since,value,low,high,threshold,holds,"
        "certain,selected,acted,comparison",
        f"policies/3,1,{START},{END},eth0,p0,off,{since},,,,,true,false,7,0,",
        f"policies/3,1,{START},{END},eth0,p1,hold,{since},812.4,770.0,859.0,500.0,true,false,7,0,",
    ]


def test_every_state_has_its_word_and_infinity_is_no_number(tmp_path: Path) -> None:
    item = monitors.policies(*PolicyState)
    rows = item.rows.copy()
    rows["high"] = np.inf
    with Sink(str(tmp_path), "jsonl", [VIEWS[POLICIES_TABLE]]) as sink:
        sink.write(monitors.table(POLICIES_TABLE, rows))
    table = records_in(tmp_path / "policies.jsonl")
    assert [row["state"] for row in table] == ["off", "armed", "active", "hold", "cool-down"]
    assert {row["high"] for row in table} == {None}


def test_a_cause_that_is_cut_within_a_character_is_text(tmp_path: Path) -> None:
    item = monitors.triggers(PolicyState.ACTIVE)
    rows = item.rows.copy()
    rows["cause"] = ("é" * 128 + "x").encode()[1:256]
    assert "�" in written(tmp_path, TRIGGERS_TABLE, monitors.table(TRIGGERS_TABLE, rows))[1]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(METRICS_TABLE, METRIC), (TRIGGERS_TABLE, TRANSITION), (POLICIES_TABLE, POLICY)],
)
def test_a_table_without_rows(tmp_path: Path, name: str, dtype: Any) -> None:
    assert len(written(tmp_path, name, monitors.table(name, np.zeros(0, dtype)))) == 1


def test_metrics_are_the_monitors_and_a_table_for_each_of_the_probes(tmp_path: Path) -> None:
    """Of issue 5: `--views metrics` gives both; a probe called as the monitor is another's."""
    target = Options(out=str(tmp_path), views="metrics", monitor=True).output_spec({})
    called_so = metric(narrow(), probe="monitor", name="metrics")
    views = [VIEWS[name] for name in target.views]
    with Sink(target.out, "csv", views, metrics=target.metrics) as sink:
        for item in (flows(), monitors.metrics(), metric(narrow(), probe="dns"), called_so):
            sink.write(item)
    counts = {path.stem: len(rows_in(path)) for path in tmp_path.iterdir()}
    assert counts == {"metrics": 1, "dns.ingress.hits": 2, "monitor.ingress.metrics": 2}


def target(*, out: str = "dir", views: str | None = None, **options: Any) -> OutputSpec:
    return Options(out=out, views=views, **options).output_spec({})


def test_a_directory_gets_all_that_a_monitor_gives() -> None:
    """Of issue 5, 8."""
    told = target(interface="eth0", monitor=True)
    assert told.views == ("flows", "metrics", "triggers", "policies", "windows", "events")
    assert told.metrics
    several = target(monitor=True)
    assert {*several.views} - {*told.views} == {"repeated", "interfaces"}
    told = target(policy=["a: always -> trace"])
    assert {"hops", "paths", "triggers"} <= {*told.views}
    told = target(bits=8, only=True)
    assert told.views == ("metrics", "triggers", "policies", "windows", "events")
    assert target(interface="eth0").views == ("flows", "windows", "events")
    assert target(interface="eth0").metrics
    told = target(views="metrics,triggers", policy=["a: always -> dns"])
    assert (told.views, told.metrics) == (("metrics", "triggers"), True)
    # The API may add a policy, and that starts a monitor.
    assert target(views="metrics,triggers", api=True) == told


def test_standard_output_gets_one_table_the_monitors_where_it_runs() -> None:
    assert target(out="-", views="metrics", monitor=True) == OutputSpec(
        "-", None, ("metrics",), False
    )
    assert target(out="-", only=True, offload=True) == OutputSpec("-", None, ("metrics",), False)
    assert target(out="-", views="metrics") == OutputSpec("-", None, (), True)
    assert target(out="-", monitor=True).views == ("flows",)


def test_an_export_names_all_tables() -> None:
    items = [
        monitors.metrics(),
        monitors.policies(PolicyState.ARMED),
        monitors.triggers(PolicyState.ACTIVE, PolicyState.HOLD),
    ]
    whole = json.loads(document(items, "json"))
    assert whole["probe"] == "monitor"
    assert [row["udp_packets"] for row in whole["metrics"]] == [5]
    assert [row["state"] for row in whole["policies"]] == ["armed"]
    assert [row["after"] for row in whole["triggers"]] == ["active", "hold"]
    root = ElementTree.fromstring(document(items, "xml"))
    assert [
        len(root.findall(f"{name}/row")) for name in (METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE)
    ] == [1, 1, 2]
    assert len(document(items, "csv").decode().split("\n\n")) == 3


def said(*items: Any) -> str:
    totals = Totals()
    for item in items:
        totals.add(item)
    return str(totals)


def test_what_was_monitored_is_summed_up() -> None:
    """S2.5: a baseline monitor without policies."""
    window = (monitors.metrics(), monitors.policies(PolicyState.ARMED))
    assert said(*window, *window, monitors.triggers(PolicyState.ACTIVE, PolicyState.HOLD)) == (
        "2 windows monitored, 40 packets, 2 transitions"
    )
    assert said(flows(), *window) == (
        "1 windows, 6 packets in flows, 0 lost; 1 windows monitored, 20 packets, 0 transitions"
    )


def test_a_frame_that_several_probes_cannot_read_is_lost_once() -> None:
    """D5: each probe counts it, and the last line does not."""
    unread = {LossReason.NOT_IP: Loss(6016, 300), LossReason.MALFORMED: Loss(1, 60)}
    monitored = replace(monitors.metrics(), losses=unread)
    both = {**unread, LossReason.TABLE_FULL: Loss(3, 180)}
    assert "4 lost (6016 not ip, 1 malformed, 3 table full)" in said(
        replace(flows(), losses=both), monitored
    )
    other = replace(monitored, interface="eth1", losses={LossReason.MALFORMED: Loss(2, 120)})
    assert "3 lost (6016 not ip, 3 malformed)" in said(
        replace(flows(), losses=unread), monitored, other
    )
