"""--filter: written rows, terms of each table, and messages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.outputs.filtering import Filtering, passing
from app.outputs.sink import Sink
from app.outputs.views import VIEWS
from bpf.errors import TextError, UsageError
from probes.flow.records import FLOW
from probes.monitor.state import PolicyState
from probes.path.records import PathRowKind, ProbeOutcome
from probes.snapshot import Event, Item, Snapshot
from probes.tables.conversion import TableKind, TableSchema
from tests.support import monitors, paths
from tests.support.runs import Row, rows

END = 10**12
ALL = tuple(VIEWS)


def flows(*numbers: int) -> Snapshot:
    """A window of two seconds with flows to ports of these numbers, each of as many packets."""
    table = np.zeros(len(numbers), FLOW)
    table["interface"] = b"eth0"
    table["version"], table["protocol"] = 4, 17
    table["source"][:, :4] = (10, 0, 0, 1)
    table["destination"][:, :4] = (192, 0, 2, 1)
    table["source_port"], table["destination_port"] = 1024, numbers
    table["packets"] = numbers
    table["bytes"] = table["packets"] * 1000
    table["first_ns"] = table["last_ns"] = END
    return Snapshot(
        "flow", "eth0", 1, 1, END - 2 * 10**9, END, 1_767_225_600_000_000_000, table, {}, 0.25,
        50_000, 1_000_000,
    )  # fmt: skip


def written(
    tmp_path: Path, text: str, *items: Item, views: tuple[str, ...] = ALL
) -> tuple[dict[str, list[Row]], Filtering]:
    """Rows by view, and the filter's counts."""
    filtering = Filtering.of(text, views, {"web": "dport:80,443"})
    chosen = [VIEWS[name] for name in views]
    with Sink(str(tmp_path), "csv", chosen, keep=filtering.kept) as sink:
        for item in items:
            sink.write(item)
    return {name: rows(tmp_path / f"{name}.csv") for name in views}, filtering


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", [53, 80, 443]),
        ("dport:80-443", [80, 443]),
        ("@web packets>80", [443]),
        ("bytes>=80k dst:192.0.2.0/24", [80, 443]),
        ("rate>300kbit", [80, 443]),
        ("pps<30", [53]),
        (r"host:/^192\.0\.2\.1$/ !443", [53, 80]),
    ],
)
def test_flows_that_pass_are_written_and_windows_stay_whole(
    tmp_path: Path, text: str, ports: list[int]
) -> None:
    found, filtering = written(tmp_path, text, flows(53, 80, 443))
    assert [int(row["destination_port"]) for row in found["flows"]] == ports
    (window,) = found["windows"]
    # The window's counts include rows that are not written.
    assert (window["rows"], window["packets"]) == ("3", "576")
    said = f"{3 - len(ports)} of 3 rows did not pass {text}" if text else ""
    assert str(filtering) == said


def test_hops_and_paths_are_filtered_by_what_they_have(tmp_path: Path) -> None:
    probes = paths.probes(*[ProbeOutcome.ANSWERED] * 3, ProbeOutcome.UNANSWERED)
    told = paths.told(PathRowKind.SUMMARY, PathRowKind.RESPONDER)
    found, _ = written(tmp_path, "rtt>1.5ms dport:443", probes, told)
    assert [row["hop"] for row in found["hops"]] == ["2", "3"]
    found, _ = written(tmp_path / "ttl", "ttl<=3 !outcome:unanswered kind:responder", probes, told)
    assert [row["hop"] for row in found["hops"]] == ["1", "2", "3"]
    assert [row["kind"] for row in found["paths"]] == ["responder"]
    found, _ = written(tmp_path / "router", "router:198.51.100.7", probes)
    assert len(found["hops"]) == 3


def test_policies_and_events_are_filtered_too(tmp_path: Path) -> None:
    window = monitors.policies(PolicyState.ACTIVE, PolicyState.ARMED)
    lost = Event(0, "warning", "flow", "7 packets lost")
    began = Event(0, "info", "flow", "generation 1")
    found, filtering = written(
        tmp_path, "state:active text:/LOST/ severity:warning,error", window, lost, began
    )
    assert [row["state"] for row in found["policies"]] == ["active"]
    assert [row["text"] for row in found["events"]] == ["7 packets lost"]
    assert filtering.left_out == 2


def test_tables_that_do_not_know_a_term_are_whole_and_that_is_said(tmp_path: Path) -> None:
    views = ("flows", "hops", "windows", "events")
    found, filtering = written(
        tmp_path, "dport:443 rtt>5", flows(53, 443), Event(0, "info", "flow", "it"), views=views
    )
    assert [int(row["destination_port"]) for row in found["flows"]] == [443]
    assert len(found["events"]) == 1
    assert filtering.words(views) == (
        "rtt>5 does not filter flows; dport:443 rtt>5 does not filter windows, events"
    )
    assert Filtering.of("", views, {}).words(views) == ""
    # A bare word filters flows, not events.
    assert "events" in Filtering.of("tcp", views, {}).words(views)


def test_the_tables_of_one_window_are_filtered_for_the_api() -> None:
    (item,) = passing([flows(53, 443)], "dport:443")
    assert item.rows["destination_port"].tolist() == [443]
    assert passing([flows(53)], " ")[0].rows["destination_port"].tolist() == [53]
    probes, told = passing(
        [paths.probes(*[ProbeOutcome.ANSWERED] * 2), paths.told(PathRowKind.GAP)], "hop<2"
    )
    assert probes.rows["hop"].tolist() == [1]
    assert not len(told.rows)
    metric = replace(flows(53), schema=TableSchema(TableKind.HASH), metric="m")
    with pytest.raises(UsageError, match="no filter for tables of metrics"):
        passing([metric], "dport:53")


def test_a_filter_of_no_table_is_refused() -> None:
    with pytest.raises(TextError, match="flows have no 'hop'"):
        Filtering.of("hop>5", ("flows", "windows"), {})
    with pytest.raises(UsageError, match="no filter for windows"):
        Filtering.of("rtt>5", ("windows",), {})


@pytest.mark.parametrize(
    ("text", "views", "needs"),
    [
        ("proc:nginx", ("flows", "hops"), True),
        ("dport:443 (tcp or unit:web)", ("conversations",), True),
        ("@owned", ("flows",), True),
        ("rtt>5", ("flows",), True),
        # Hops know the term: flows stay whole.
        ("rtt>5", ("flows", "hops"), False),
        ("dport:443", ("flows",), False),
    ],
)
def test_a_filter_says_whether_it_needs_owners(
    text: str, views: tuple[str, ...], needs: bool
) -> None:
    assert Filtering.of(text, views, {"owned": "pod:web"}).needs_owners is needs
    assert not Filtering.of(text, views, {"owned": "pod:web"}, owners=True).needs_owners


def test_a_filter_of_owners_is_refused_if_they_are_off() -> None:
    with pytest.raises(TextError, match=r"needs owners of flows, and they are off \(column 5\)"):
        Filtering.of("tcp proc:nginx", ("flows",), {}, owners=False)
    with pytest.raises(TextError, match="flows have no 'prok'"):
        Filtering.of("prok:nginx", ("flows",), {}, owners=False)
    with pytest.raises(UsageError, match="no filter for windows"):
        Filtering.of("proc:nginx", ("windows",), {})
    assert Filtering.of("rtt>5", ("flows", "hops"), {}, owners=True).words(("flows",)) == ""
