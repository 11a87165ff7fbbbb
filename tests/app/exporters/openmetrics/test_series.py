"""Series of metrics from published items: values, bounds, and the text of Prometheus."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.exporters.openmetrics import families
from app.exporters.openmetrics.exposition import exposition
from app.exporters.openmetrics.metric_state import MetricState
from app.exporters.openmetrics.paths import PathSeries
from app.exporters.openmetrics.series import MOST_INTERFACES
from probes.flow.interfaces import INTERFACE
from probes.flow.kinds import INTERFACES
from probes.flow.records import NAME
from probes.monitor.state import PolicyState
from probes.path.records import DESTINATION_HOP, MeasuredBy, PathRowKind, ProbeOutcome
from probes.snapshot import REMOVED, Event, HookStatus, Item, Loss, LossReason, Peak, Snapshot
from probes.sockets.records import OWNER
from tests.app.exporters.scraped import checked, scraped
from tests.app.outputs.test_owner_tables import answers, table
from tests.probes.flow.test_grouping import HERE, HERE6, THERE, THERE6, both
from tests.support import monitors, paths

BIG = (1 << 53) + 1


def window(number: int, **fields: Any) -> Snapshot:
    rows = [
        both(HERE, THERE, 40001, 443),
        both(HERE6, THERE6, 40002, 53, 17),
        both(HERE6, THERE6, 7, 0, 58),
        both(HERE, THERE, 0, 0, 47),
    ]
    made = table("flow", number, np.concatenate(rows))
    return replace(made, end_ns=number * 10**9, end_utc_ns=number * 10**9, **fields)


def everything() -> MetricState:
    """A state that has samples of every family that items make."""
    state = MetricState()
    hooks = (HookStatus("eth0", "xdp", "native"), HookStatus("eth0", "tc egress", "removed"))
    losses = {LossReason.TABLE_FULL: Loss(3, 180), LossReason.NOT_IP: Loss(5, 300)}
    items: tuple[Item, ...] = (
        window(1, losses=losses, hooks=hooks, occupancy=0.5, drain_ns=2_000_000),
        window(2, hooks=hooks, losses={LossReason.TABLE_FULL: Loss(1, 60)}),
        *answers(2),
        monitors.metrics(),
        monitors.metrics(window=2),
        monitors.triggers(PolicyState.ACTIVE, PolicyState.HOLD, PolicyState.COOLDOWN),
        monitors.policies(PolicyState.ARMED, PolicyState.ACTIVE),
        paths.probes(ProbeOutcome.ANSWERED, ProbeOutcome.UNANSWERED),
        paths.told(PathRowKind.SUMMARY, PathRowKind.QUEUE),
        Event.now("warning", "path", 'a text with "quotes"'),
    )
    for item in items:
        state.take(item)
    return state


def test_counters_are_the_sums_of_all_windows() -> None:
    found = scraped(everything())
    flow = 'direction="{}",interface="eth0",protocol="{}"'
    assert found[f"probedeck_flow_packets_total{{{flow.format('in', 'tcp')}}}"] == 4
    assert found[f"probedeck_flow_bytes_total{{{flow.format('out', 'icmp')}}}"] == 200
    assert found[f"probedeck_flow_bytes_total{{{flow.format('in', 'other')}}}"] == 400
    assert found[f"probedeck_flows{{{flow.format('out', 'udp')}}}"] == 1
    packets = [v for k, v in found.items() if k.startswith("probedeck_flow_packets_total")]
    assert sum(packets) == 2 * 12

    monitor = 'interface="eth0",protocol="{}"'
    assert found[f"probedeck_monitor_packets_total{{{monitor.format('other')}}}"] == 8
    assert found[f"probedeck_monitor_bytes_total{{{monitor.format('tcp')}}}"] == 1600
    assert found['probedeck_monitor_tcp_packets_total{flags="syn",interface="eth0"}'] == 8
    assert found['probedeck_sketch_flows_high{interface="eth0"}'] == pytest.approx(858.96)

    lost = 'interface="eth0",probe="flow",reason="{}"'
    assert found[f"probedeck_lost_packets_total{{{lost.format('table_full')}}}"] == 4
    assert found[f"probedeck_lost_bytes_total{{{lost.format('table_full')}}}"] == 240
    assert found[f"probedeck_skipped_packets_total{{{lost.format('not_ip')}}}"] == 5
    assert found[f"probedeck_lost_packets_total{{{lost.format('overrun')}}}"] == 0
    assert found['probedeck_events_total{severity="warning"}'] == 1


def of_interfaces(number: int, names: Sequence[str]) -> Snapshot:
    """A window of `-i any`: two packets at each of the interfaces."""
    rows = np.concatenate([both(HERE, THERE, 40001, 443) for _ in names])
    rows["interface"] = np.repeat(names, 2).astype(NAME)
    rows["packets"] = 1
    return replace(table("flow", number, rows), interface="any")


def flow_packets(state: MetricState) -> dict[str, float]:
    found: dict[str, float] = {}
    for sample in state.samples():
        if sample.family is families.FLOW_PACKETS:
            name = sample.labels["interface"]
            found[name] = found.get(name, 0) + sample.value
    return found


def test_several_interfaces_have_series_each() -> None:
    state = MetricState()
    state.take(of_interfaces(1, ["eth0", "veth1"]))
    state.take(of_interfaces(2, ["veth1"]))
    assert flow_packets(state) == {"eth0": 2, "veth1": 4}
    gauges = {s.labels["interface"] for s in state.samples() if s.family is families.FLOWS}
    assert gauges == {"veth1"}
    rows = np.zeros(1, INTERFACE)
    rows["interface"], rows["in_packets"], rows["repeated_out_packets"] = b"eth0", 5, 7
    peaks = (Peak("eth0", "egress", 800, 8_000_000),)
    state.take(replace(table("flow", 2, rows, INTERFACES), interface="any", peaks=peaks))
    found = scraped(state)
    assert found['probedeck_repeated_packets_total{direction="out",interface="eth0"}'] == 7
    assert found['probedeck_repeated_packets_total{direction="in",interface="eth0"}'] == 0
    assert found['probedeck_peak_bytes_per_second{direction="out",interface="eth0"}'] == 100_000
    assert flow_packets(state) == {"eth0": 2, "veth1": 4}


@pytest.mark.slow
def test_several_interfaces_without_a_packet_have_no_series() -> None:
    state, quiet = MetricState(), of_interfaces(1, ["eth0"])
    state.take(replace(quiet, rows=quiet.rows[:0]))
    assert flow_packets(state) == {}


def test_interfaces_that_come_and_go_have_a_bounded_number_of_series() -> None:
    state, sent = MetricState(), 0
    for number in range(100):
        state.take(of_interfaces(number, ["eth0", *(f"veth{number}.{n}" for n in range(10))]))
    found = flow_packets(state)
    assert len(found) == MOST_INTERFACES
    assert found["eth0"] == 200
    assert found["veth99.9"] == 2
    names = [f"tap{n}" for n in range(MOST_INTERFACES + 4)]
    before = found.get("other", 0)
    for number in (100, 101):
        state.take(of_interfaces(number, names))
        sent += 2 * len(names)
    found = flow_packets(state)
    assert sum(found.values()) == before + sent, "each packet is in one series"
    assert found["other"] == 2 * 2 * 4


def test_probes_and_their_hooks() -> None:
    found = scraped(everything())
    assert found['probedeck_probe_windows_total{probe="flow"}'] == 2
    assert found['probedeck_probe_windows_total{probe="sockets"}'] == 1
    assert found['probedeck_probe_rows{probe="flow",table="flows"}'] == 8
    assert found['probedeck_probe_occupancy_ratio{probe="path",table="hops"}'] == 0.25
    assert found['probedeck_probe_drain_seconds_sum{probe="flow"}'] == 0.002
    assert found['probedeck_probe_drain_seconds_count{probe="flow"}'] == 2
    assert found['probedeck_hook_info{hook="tc egress",interface="eth0",mode="removed"}'] == 1


def test_policies_are_states_and_only_begins_are_activations() -> None:
    state = everything()
    state.take(monitors.triggers(PolicyState.ACTIVE))
    rows = monitors.policies(PolicyState.ARMED, PolicyState.HOLD).rows.copy()
    rows["policy"][1] = b"flood"
    state.take(monitors.table("policies", rows))
    found = scraped(state)
    assert found['probedeck_policy_activations_total{policy="flood"}'] == 2
    assert found['probedeck_policy_activations_total{policy="p0"}'] == 0
    assert found['probedeck_policy_state{policy="flood",probedeck_policy_state="hold"}'] == 1
    assert found['probedeck_policy_state{policy="flood",probedeck_policy_state="armed"}'] == 0
    assert found['probedeck_policy_value{policy="flood"}'] == pytest.approx(812.4)
    assert 'probedeck_policy_value{policy="p0"}' not in found
    assert found['probedeck_policy_selected_packets_total{policy="p0"}'] == 14
    assert not any('policy="p1"' in name for name in found), "it was removed"


def test_paths_by_destination_and_hop() -> None:
    state = everything()
    answered = ProbeOutcome.ANSWERED
    flow = paths.probes(answered, window=2)
    rows = flow.rows.copy()
    rows["hop"], rows["measured_by"] = DESTINATION_HOP, MeasuredBy.TCP_ACK
    for item in (replace(flow, rows=rows), paths.probes(answered, answered, window=3)):
        state.take(item)
    found = scraped(state)
    hop = 'destination="192.0.2.2",hop="{}"'
    one, two = hop.format(1), hop.format(2)
    assert found[f'probedeck_path_probes_total{{{one},outcome="answered"}}'] == 2
    assert found[f'probedeck_path_probes_total{{{two},outcome="unanswered"}}'] == 1
    assert found[f"probedeck_path_rtt_seconds_count{{{one}}}"] == 2
    assert found[f"probedeck_path_rtt_seconds_sum{{{two}}}"] == 0.002
    assert found[f'probedeck_path_rtt_seconds{{{two},quantile="0.95"}}'] == 0.002
    assert found[f"probedeck_path_rtt_seconds_count{{{hop.format('flow')}}}"] == 1
    probes = {name for name in found if name.startswith("probedeck_path_probes_total")}
    assert not [name for name in probes if 'hop="flow"' in name], "a round trip is no probe"
    assert found[f"probedeck_path_loss_ratio{{{hop.format(3)}}}"] == 0, "a later hop clears it"
    assert found[f'probedeck_path_router_info{{{hop.format(3)},router="198.51.100.7"}}'] == 1
    assert found['probedeck_path_findings_total{destination="192.0.2.2",kind="queue"}'] == 1


def test_a_destination_that_is_traced_no_more_loses_its_series() -> None:
    now = 0.0
    series = PathSeries(lambda: now)
    series.take(paths.probes(ProbeOutcome.ANSWERED))
    now = 300.0
    assert list(series.samples())
    now = 301.0
    assert not list(series.samples())


def owners(window: int, sizes: dict[str, int]) -> Snapshot:
    rows = np.zeros(len(sizes), OWNER)
    rows["comm"], rows["bytes"], rows["user"] = list(sizes), list(sizes.values()), b"www"
    rows["packets"] = 1
    made = table("sockets", window, rows, "owners")
    return replace(made, start_ns=(window - 1) * 10**9, end_ns=window * 10**9)


def owned(state: MetricState) -> dict[str, float]:
    return {
        name.partition('process="')[2].partition('"')[0]: value
        for name, value in scraped(state).items()
        if name.startswith("probedeck_owner_bytes_total")
    }


def test_owners_are_bounded_and_no_counter_falls() -> None:
    state, random_sizes = MetricState(owners=2), random.Random(7)
    state.take(owners(1, {"a": 100, "b": 90, "c": 80}))
    assert owned(state) == {"a": 100, "b": 90, "other": 80}
    ever = owned(state)
    for number in range(2, 300):
        sizes = {f"p{random_sizes.randrange(50)}": random_sizes.randrange(1000) for _ in range(9)}
        state.take(owners(number, sizes))
        now = owned(state)
        assert len(now) <= 3
        more = {name: value - ever.get(name, 0) for name, value in now.items()}
        assert min(more.values()) >= 0
        assert sum(more.values()) == sum(sizes.values()), "each byte is in one series"
        ever |= now
    state.take(owners(300, {"big": 10**9}))
    state.take(owners(301, {"big": 10**9}))
    assert owned(state)["big"] in (10**9, 2 * 10**9)


def test_a_series_is_held_for_a_minute() -> None:
    state = MetricState(owners=1)
    state.take(owners(1, {"a": 1}))
    for number in range(2, 61):
        state.take(owners(number, {"b": 1000}))
    assert owned(state) == {"a": 1, "other": 59_000}
    state.take(owners(61, {"b": 1000}))
    assert owned(state) == {"b": 1000, "other": 59_000}


def test_a_removed_probe_keeps_its_counters_only() -> None:
    state = everything()
    for probe in ("flow", "monitor"):
        state.take(Event.now("info", probe, REMOVED))
    found = scraped(state)
    assert found['probedeck_probe_windows_total{probe="flow"}'] == 2
    gone = ("probedeck_flows{", "probedeck_sketch", "probedeck_policy", "probedeck_hook")
    assert not [name for name in found if name.startswith(gone)]
    assert not [
        name for name in found if name.startswith("probedeck_probe_rows") and "flow" in name
    ]
    state.take(window(1))
    assert 'probedeck_probe_rows{probe="flow",table="flows"}' in scraped(state)


def test_probes_that_come_and_go_leave_a_bounded_number_of_series() -> None:
    state = MetricState()
    for number in range(300):
        state.take(replace(window(1), probe=f"probe{number}"))
        state.take(Event.now("info", f"probe{number}", REMOVED))
    assert len(scraped(state)) < 64 * 20


def test_sums_are_exact_beyond_the_integers_of_floats() -> None:
    rows = both(HERE, THERE, 1, 2)
    rows["bytes"] = BIG
    state = MetricState()
    state.take(table("flow", 1, rows))
    values = [s.value for s in state.samples() if s.family is families.FLOW_BYTES and s.value]
    assert values == [BIG, BIG]


def test_prometheus_takes_the_text_and_its_linter_finds_no_fault() -> None:
    state = everything()
    text, media_type = exposition("text/plain;version=0.0.4", state.samples)
    assert media_type.startswith("text/plain")
    checked(text)
    text, media_type = exposition("application/openmetrics-text;version=1.0.0", state.samples)
    assert media_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")


def test_labels_are_escaped() -> None:
    name = 'a"b\\c\n'
    state = MetricState()
    state.take(owners(1, {name: 5}))
    assert any(f'process="{name}"' in series for series in scraped(state))


def test_each_family_has_its_row_in_the_documents() -> None:
    text = Path("docs/metrics.md").read_text()
    rows = {
        (cells[1].strip(" `"), cells[2].strip())
        for cells in (line.split("|") for line in text.splitlines() if line.startswith("| `prob"))
    }
    expected = {
        (each.series, ", ".join(f"`{label}`" for label in each.labels))
        for each in families.FAMILIES
    }
    assert rows == expected


def test_no_family_has_the_label_of_a_flow() -> None:
    labels = {label for each in families.FAMILIES for label in each.labels}
    assert not labels & {"source", "source_port", "destination_port", "pid", "cookie"}
