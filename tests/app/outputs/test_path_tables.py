"""Tables of path tracing: the columns' contents, and empty cells."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from app.outputs.document import document
from app.outputs.sink import Sink
from app.outputs.views import VIEWS, counted
from app.run.totals import Totals
from probes.path.records import (
    DESTINATION_HOP,
    HOP,
    HOPS_TABLE,
    PATH,
    MeasuredBy,
    PathRowKind,
    ProbeOutcome,
)
from probes.path.traced import Traced
from tests.app.outputs.test_metric_files import flows, metric, narrow
from tests.support import paths
from tests.support.tables import records_in, rows_in


def test_the_columns_of_hops(tmp_path: Path) -> None:
    """S3.11, S3.17: a row a probe; times as UTC, to the nanosecond."""
    with Sink(str(tmp_path), "csv", [VIEWS["hops"]]) as sink:
        sink.write(paths.probes(ProbeOutcome.ANSWERED, ProbeOutcome.UNANSWERED))
        sink.write(paths.probes(ProbeOutcome.UNREACHABLE, version=6, window=2))
    assert (tmp_path / "hops.csv").read_text().splitlines() == [
        "schema,window,interface,sent,sent_ns,received_ns,ip_version,protocol,source,source_port,"
        "destination,destination_port,hop,measured_by,outcome,responder,rtt_ns,ttl,icmp_type,"
        "icmp_code,quoted_ttl,quoted_tos,labels,altered,tos,whole,remote_clock,sequence,"
        "packet_bytes,responder_name,responder_asn,responder_as_name,responder_country",
        "hops/2,1,eth0,2025-12-31T23:59:59.124456789Z,1767225599124456789,1767225599125456789,4,6,"
        "192.0.2.1,40000,192.0.2.2,443,1,probe,answered,198.51.100.7,1000000,60,11,0,1,8,"
        "16001:5:0:254 24:0:1:1,length sequence,8,true,,101,1514,,,,",
        "hops/2,1,eth0,2025-12-31T23:59:59.125456789Z,1767225599125456789,,4,6,"
        "192.0.2.1,40000,192.0.2.2,443,2,probe,unanswered,,,,,,,,,,8,true,,102,1514,,,,",
        "hops/2,2,eth0,2025-12-31T23:59:59.124456789Z,1767225599124456789,1767225599125456789,6,6,"
        "2001:db8::1,40000,2001:db8::2,443,1,probe,unreachable,2001:db8::7,1000000,60,3,0,1,8,"
        "16001:5:0:254 24:0:1:1,length sequence,8,true,,101,1514,,,,",
    ]


def test_every_outcome_has_its_word_and_an_overrun_no_flow(tmp_path: Path) -> None:
    """S3.10, S3.18."""
    with Sink(str(tmp_path), "csv", [VIEWS["hops"]]) as sink:
        sink.write(paths.probes(*ProbeOutcome))
    table = rows_in(tmp_path / "hops.csv")
    assert [row["outcome"] for row in table] == [
        "answered", "unreachable", "unanswered", "dropped", "overrun", "in flight",
        "beyond path",
    ]  # fmt: skip
    flow = ("protocol", "source", "source_port", "destination_port")
    assert [all(row[name] for name in flow) for row in table] == [
        row["outcome"] != "overrun" for row in table
    ]
    assert {row["destination"] for row in table} == {"192.0.2.2"}
    assert [row["rtt_ns"] for row in table] == ["1000000", "2000000", *[""] * 5]


def test_a_round_trip_of_the_flow_is_no_probe_and_quotes_nothing(tmp_path: Path) -> None:
    """No number, no guard and no quoted field, but the clock of the destination."""
    rows = paths.probes(ProbeOutcome.ANSWERED, ProbeOutcome.UNANSWERED).rows.copy()
    rows["hop"], rows["measured_by"] = DESTINATION_HOP, MeasuredBy.TCP_TIMESTAMP
    rows["remote_clock"] = 4_000_000_000, 0
    with Sink(str(tmp_path), "csv", [VIEWS["hops"]]) as sink:
        sink.write(paths.table(HOPS_TABLE, rows))
    there, lost = rows_in(tmp_path / "hops.csv")
    assert (there["hop"], there["measured_by"], there["ttl"]) == ("31", "tcp timestamp", "60")
    assert (there["rtt_ns"], there["remote_clock"]) == ("1000000", "4000000000")
    assert (lost["outcome"], lost["rtt_ns"], lost["remote_clock"]) == ("unanswered", "", "")
    for name in ("icmp_type", "icmp_code", "quoted_ttl", "quoted_tos", "altered", "whole",
                 "sequence"):  # fmt: skip
        assert there[name] == lost[name] == ""


def test_the_columns_of_paths(tmp_path: Path) -> None:
    """S3.20."""
    with Sink(str(tmp_path), "csv", [VIEWS["paths"]]) as sink:
        sink.write(paths.told(PathRowKind.SUMMARY, PathRowKind.RESPONDER))
        sink.write(paths.told(PathRowKind.LONGER, version=6))
    assert (tmp_path / "paths.csv").read_text().splitlines() == [
        "schema,window,interface,at,kind,ip_version,protocol,source,source_port,destination,"
        "destination_port,hop,responder,previous,sent,answered,lost,dropped,loss_low,loss_high,"
        "last_ns,min_ns,median_ns,p95_ns,max_ns,jitter_ns,amount_ns,since,amount,alternatives,"
        "cleared,labels,flows,statistic,p_value,other_hop,side,folded,responder_name,"
        "responder_asn,responder_as_name,responder_country",
        "paths/2,1,eth0,2026-01-01T00:00:00.023456789Z,summary,4,6,192.0.2.1,40000,192.0.2.2,443,3,"
        "198.51.100.7,,100,97,2,1,0.0025,0.07,,1,2,3,4,5,0,2025-12-31T23:59:59.123456789Z,,2,true,,,,,,,"
        ",,,,",
        "paths/2,1,eth0,2026-01-01T00:00:00.023456789Z,responder,4,6,192.0.2.1,40000,192.0.2.2,443,"
        "3,198.51.100.7,198.51.100.9,,,,,,,,,,,,,,2025-12-31T23:59:59.123456789Z,,,,,,,,,,,,,,",
        "paths/2,1,eth0,2026-01-01T00:00:00.023456789Z,longer,6,6,2001:db8::1,40000,2001:db8::2,"
        "443,3,2001:db8::7,2001:db8::9,,,,,,,,,,,,,,2025-12-31T23:59:59.123456789Z,2,,,,,,,,,,,,,",
    ]


def test_the_columns_of_traces(tmp_path: Path) -> None:
    with Sink(str(tmp_path), "csv", [VIEWS["traces"]]) as sink:
        sink.write(paths.traces("192.0.2.2", "2001:db8::2"))
    assert (tmp_path / "traces.csv").read_text().splitlines() == [
        "schema,window,since,end,interface,ip_version,destination,routers,packets,probes,"
        "probe_bytes,answers,answer_bytes,unmatched,foreign",
        "traces/1,1,2025-12-31T23:59:59.123456789Z,2026-01-01T00:00:00.123456789Z,eth0,4,"
        "192.0.2.2,6,100,10,400,9,504,1,2",
        "traces/1,1,2025-12-31T23:59:59.123456789Z,2026-01-01T00:00:00.123456789Z,eth0,6,"
        "2001:db8::2,6,100,10,400,9,504,1,2",
    ]


def test_every_kind_has_its_word_and_its_amount(tmp_path: Path) -> None:
    with Sink(str(tmp_path), "jsonl", [VIEWS["paths"]]) as sink:
        sink.write(paths.told(*PathRowKind))
    table = records_in(tmp_path / "paths.jsonl")
    assert [row["kind"] for row in table] == [
        "summary", "responder", "balanced", "balanced packets", "longer", "shorter", "silent",
        "answers", "shift", "queue", "queue over", "gap", "branch", "marking", "altered", "route",
        "route amounts", "alias", "loss", "loss over", "loop", "loop over", "flap", "flap over",
    ]  # fmt: skip
    assert {row["kind"]: row["amount_ns"] for row in table if row["amount_ns"]} == {
        "shift": -70_000, "queue": -70_000,
    }  # fmt: skip
    assert {row["kind"] for row in table if row["side"]} == {"queue", "loss"}
    assert {row["kind"] for row in table if row["lost"] is not None} == {
        "summary", "loss", "loss over",
    }  # fmt: skip
    assert [row["cleared"] for row in table] == [True] + [None] * 23


def test_what_is_a_row_of_one_view_is_none_of_another(tmp_path: Path) -> None:
    views = [VIEWS[name] for name in ("flows", "hops", "paths", "windows")]
    called_path = metric(narrow(), probe="path", name="hops")
    with Sink(str(tmp_path), "csv", views) as sink:
        for item in (flows(), paths.probes(*ProbeOutcome), paths.told(*PathRowKind), called_path):
            sink.write(item)
    counts = {view.name: len(rows_in(tmp_path / f"{view.name}.csv")) for view in views}
    assert counts == {"flows": 2, "hops": 7, "paths": 24, "windows": 4}
    windows = rows_in(tmp_path / "windows.csv")
    assert [(row["probe"], row["metric"], row["packets"]) for row in windows] == [
        ("flow", "", "6"), ("path", "hops", ""), ("path", "paths", ""), ("path", "hops", ""),
    ]  # fmt: skip
    assert counted(paths.probes(*ProbeOutcome)) is None


def test_overruns_have_a_column_in_windows(tmp_path: Path) -> None:
    """S3.18."""
    with Sink(str(tmp_path), "csv", [VIEWS["windows"]]) as sink:
        sink.write(paths.probes(ProbeOutcome.ANSWERED, losses=paths.OVERRUN))
    [row] = rows_in(tmp_path / "windows.csv")
    assert (row["overrun"], row["table_full"]) == ("2", "0")


@pytest.mark.parametrize(("name", "dtype"), [("hops", HOP), ("paths", PATH)])
def test_a_table_without_rows(tmp_path: Path, name: str, dtype: np.dtype[np.void]) -> None:
    with Sink(str(tmp_path), "csv", [VIEWS[name]]) as sink:
        sink.write(paths.table(name, np.zeros(0, dtype)))
    assert rows_in(tmp_path / f"{name}.csv") == []


def test_an_export_names_both_tables() -> None:
    text = document([paths.probes(ProbeOutcome.ANSWERED, losses=paths.OVERRUN)], "xml").decode()
    assert '<hops interface="eth0">\n<loss reason="overrun" packets="2" bytes="0"/>' in text


def said(*items: object) -> str:
    totals = Totals()
    for item in items:
        totals.add(item)  # type: ignore[arg-type]
    return str(totals)


def test_probes_are_summed_up() -> None:
    """S3.10, S3.18."""
    some = paths.probes(
        *[ProbeOutcome.ANSWERED] * 5, ProbeOutcome.UNANSWERED, ProbeOutcome.UNREACHABLE
    )
    words = "14 probes, 12 answered, 2 lost, 0 overrun, 12 altered on the way"
    assert said(some, some, paths.told(*PathRowKind)) == words
    assert said(paths.probes(*ProbeOutcome, losses=paths.OVERRUN), flows()) == (
        "1 windows, 6 packets in flows, 0 lost; "
        "7 probes, 2 answered, 1 lost, 1 overrun, 1 dropped, 1 in flight, 1 beyond path, "
        "2 altered on the way"
    )
    assert said(paths.probes()) == "0 probes, 0 answered, 0 lost, 0 overrun"
    assert said() == "0 windows, 0 packets in flows, 0 lost"


def test_refusals_of_a_router_that_answers_seldom_are_no_losses() -> None:
    """A later hop, or the flow itself, shows that the packets arrived."""
    rows = paths.probes(*[ProbeOutcome.ANSWERED] * 400).rows.copy()
    rows["hop"] = np.arange(400) % 4 + 1
    limited = (rows["hop"] == 4) & (np.arange(400) > 100)
    rows["outcome"][limited], rows["received_ns"][limited] = ProbeOutcome.UNANSWERED, 0
    assert " 75 lost" in said(paths.table(HOPS_TABLE, rows))
    own = rows[rows["hop"] == 1].copy()
    own["hop"], own["measured_by"], own["outcome"] = DESTINATION_HOP, MeasuredBy.TCP_ACK, 0
    words = said(paths.table(HOPS_TABLE, np.concatenate([rows, own])))
    assert words.startswith(
        "400 probes, 325 answered, 0 lost, 75 unanswered without loss, 0 overrun"
    )


def test_answers_that_match_nothing_are_counted() -> None:
    totals = Totals()
    totals.add(paths.probes())
    for unmatched in (3, 5):  # the last state of the destination counts
        totals.note([Traced("192.0.2.2", (), 5, (), (), 20, 10, 5, unmatched=unmatched)])
    assert str(totals) == "0 probes, 0 answered, 0 lost, 0 overrun, 5 unmatched answers"


@pytest.mark.timing
def test_fifty_thousand_probes_a_second_can_be_written(tmp_path: Path) -> None:
    """Of issue 4."""
    many = np.tile(paths.probes(*ProbeOutcome).rows, 9000)
    many["sent_ns"] = paths.END - 10**9 + np.arange(len(many)) * 18_000
    with Sink(str(tmp_path), "csv", [VIEWS["hops"]]) as sink:
        started = time.process_time()
        sink.write(paths.table(HOPS_TABLE, many))
        seconds = time.process_time() - started
    assert seconds < 1.08  # 0.35 on an idle machine
