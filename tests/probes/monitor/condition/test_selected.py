"""Metrics of selections in conditions: their text, their bands, and windows that lack them."""

from __future__ import annotations

import pytest

from bpf.errors import TextError
from probes.monitor.condition import Condition
from probes.monitor.condition.series import WindowSeries
from probes.monitor.engine import Engine
from probes.monitor.policy import Policy
from probes.monitor.selected import UNITS, Estimate, SelectedMetric
from tests.probes.monitor.condition.verdicts import FLOOD, USUAL
from tests.probes.monitor.windows import row

NTP = SelectedMetric("packets", "proto:udp sport:123")
SOURCES = SelectedMetric("sources", "")


@pytest.mark.parametrize(
    ("text", "again", "metrics"),
    [
        ("rate(packets on proto:udp sport:123)>1k/s",
         "rate(packets on (proto:udp sport:123)) > 1k/s",
         {"packets on proto:udp sport:123"}),
        ("flows(on dst:10.0.0.0/8) > 5", "flows on dst:10.0.0.0/8 > 5",
         {"flows on dst:10.0.0.0/8"}),
        ("packets on proto:udp / packets > 80%", "packets on proto:udp / packets > 80%",
         {"packets on proto:udp"}),
        ("avg(bytes on dport:80,443, 10s) > 5", "avg(bytes on dport:80,443, 10s) > 5",
         {"bytes on dport:80,443"}),
        ("avg(bytes on dport:80,443,10s) > 5", "avg(bytes on dport:80,443, 10s) > 5",
         {"bytes on dport:80,443"}),
        ('ports on "udp  sport:53" > 5', "ports on (udp sport:53) > 5", {"ports on udp sport:53"}),
        ("packets on 'sport>1024' > 5", "packets on (sport>1024) > 5", {"packets on sport>1024"}),
        ("sources on (src:2001:db8::/32) * 2 > 5 and ports > 5",
         "sources on src:2001:db8::/32 * 2 > 5 and ports > 5",
         {"sources on src:2001:db8::/32", "ports"}),
        ("top_source > 50% or destinations on udp>2k",
         "top_source > 50% or destinations on udp > 2k",
         {"top_source", "destinations on udp"}),
        ("flows on (dst:10.0.0.0/8 or !dst:11.0.0.0/8) > 5", "",
         {"flows on dst:10.0.0.0/8 or !dst:11.0.0.0/8"}),
        ("packets on flags=S > 5", "", {"packets on flags=S"}),
        ("flows > 5 * baseline(10m, 2 * 500)", "", set()),
        ("rate(bytes on udp) > 3 * baseline(rate(bytes on udp), 10m, 100Mbit/s)", "",
         {"bytes on udp"}),
        ("rate(sources) > 1k/s and sources / packets > 50% and sources / flows > 9%", "",
         {"sources"}),
        ("bytes / sources > 1MB and ports / sources > 100 and protocols > 5", "", {"sources",
         "ports"}),
        ("rate(syn_packets) > 3 * rate(syn_ack_packets) and fragment_packets == 5", "", set()),
    ],
)  # fmt: skip
def test_text_reads_back(text: str, again: str, metrics: set[str]) -> None:
    condition = Condition.parse(text)
    assert condition.text == (again or text)
    assert Condition.parse(condition.text) == condition
    assert set(map(str, condition.metrics)) == metrics


@pytest.mark.parametrize(
    ("text", "column", "problem", "hint"),
    [
        ("rate(packets) on udp > 5", 15, "'on' follows a metric",
         "such as rate(packets on proto:udp) > 1k/s"),
        ("packets on > 5", 12, "nothing follows 'on'", "such as packets on proto:udp"),
        ("packets on sport>1024 > 5", 12, "'sport' has no value",
         "a filter with a comparison needs parentheses"),
        ("packets on udp port 53 > 5", 16, "'port' has no value", "write port:443"),
        ("packets on dport:53 or dport:123 > 5", 1, "'packets on dport:53' alone is no condition",
         "a filter with or needs parentheses: packets on (dport:53 or ...)"),
        ("packets on udp and sport:53 > 5", 1, "'packets on udp' alone is no condition",
         "a filter with and needs parentheses: packets on (udp and ...)"),
        ("packets on (udp dprt:53) > 5", 17, "flows have no 'dprt'", "did you mean dport?"),
        ("flows > 1 and packets on 'udp prot:6' > 5", 31, "flows have no 'prot'",
         "did you mean proto?"),
        ("packets on (udp > 5", 12, "'(' is not closed", ""),
        ("packets on udp proto:tcp > 5", 12, "it passes no packet", ""),
        ("syn_packets on udp > 5", 13, "syn_packets is of all packets",
         f"{', '.join(UNITS)} may be of a selection"),
        ("sources > flows", 9, "sources can't be compared with flows", ""),
        ("rate(top_port) > 5", 6, "rate() is of packets, bytes, flows and other counts, not of a"
         " ratio", ""),
        ("rate(bytes) > 3 * baseline(rate(bytes), 10m, 5MB)", 19,
         "the least value of bytes per second can't be bytes", "write 5MB/s"),
        ("flows > baseline(10m, packets)", 23,
         "the least value of a baseline is a number, not 'packets'",
         "such as baseline(flows, 10m, 500)"),
        ("top_source on tcp > 30", 21, "top_source is a share and never above 1", "write 30%"),
        ("130% < top_port", 1, "top_port is a share and never above 1", ""),
        ("packets / 0 > 3", 11, "division by 0", ""),
        ("packets / (5 - 5) > 3", 11, "division by 0", ""),
        ("packets > 3 and flows == 1000", 23,
         "== compares exact values, and 'flows' is an estimate", "write >= or <="),
        ("1000 != 2 * top_source on udp", 6,
         "!= compares exact values, and 'top_source' is an estimate", "write >= or <="),
    ],
)  # fmt: skip
def test_malformed(text: str, column: int, problem: str, hint: str) -> None:
    with pytest.raises(TextError) as caught:
        Condition.parse(text)
    error = caught.value
    assert (error.column, error.problem, error.hint) == (column, problem, hint)


def test_an_exact_value_and_an_idle_interface_may_be_equal() -> None:
    assert Condition.parse("packets on udp == 5 and flows == 0 and protocols != 3")


def judged(
    text: str, known: list[Estimate | None], metric: SelectedMetric = NTP
) -> list[bool | None]:
    """The verdict after each window; None: the metric is unknown there."""
    series, condition = WindowSeries(), Condition.parse(text)
    verdicts = []
    for number, value in enumerate(known, 1):
        selected = {} if value is None else {metric: value}
        series.append(row(**USUAL), number * 1_000_000_000, 1.0, selected)
        verdicts.append(condition.evaluate(series).holds)
    return verdicts


def count(value: float) -> Estimate:
    return Estimate(value, value, value)


def test_a_metric_that_is_missing_is_unknown() -> None:
    known = [None, count(5), count(50), None, count(50)]
    text = "packets on proto:udp sport:123 > 10"
    assert judged(text, known) == [None, False, True, None, True]
    assert judged("packets on (proto:udp sport:123) >= 0", known) == [True] * 5
    assert judged(f"{text} or packets > 5", known) == [True] * 5
    assert judged(f"max({text.replace(' >', ', 3s) >')}", known) == [None, None, True, True, True]
    assert judged(f"max({text.replace('> 10', ', 2s) < 100')}", known) == [
        None, None, True, None, None,
    ]  # fmt: skip
    baseline = "packets on (proto:udp sport:123) > 5 * baseline({})"
    steady = [None, *[count(5)] * 16, count(50)]
    assert judged(baseline.format("60s"), steady) == [None] * 16 + [False, True]
    # The floor replaces a baseline that is not learnt yet, and one that is lower.
    assert judged(baseline.format("60s, 8"), steady) == [None, *[False] * 16, True]
    assert judged(baseline.format("60s, 11"), steady) == [None, *[False] * 17]


@pytest.mark.parametrize(
    ("text", "holds", "certain"),
    [
        ("sources > 90", True, True),
        ("sources > 96", True, False),
        ("sources / packets > 9.6%", True, False),
        ("packets / sources < 10.6", True, True),
        ("max(sources, 2s) - 100 > -6", True, True),
        ("rate(sources) < 104/s", True, False),
    ],
)
def test_bands_go_through_arithmetic(text: str, holds: bool, certain: bool) -> None:
    series = WindowSeries()
    for number in (1, 2):
        selected = {SOURCES: Estimate(100, 95, 105)}
        series.append(row(packets=1000), number * 1_000_000_000, 1.0, selected)
    outcome = Condition.parse(text).evaluate(series)
    assert (outcome.holds, outcome.certain) == (holds, certain)


def test_a_policy_names_its_metrics_and_learns_its_own_baseline() -> None:
    """Windows of the attack are not among those of the baseline."""
    text = "packets on (proto:udp sport:123) > 5 * baseline(20s) until sources < 3"
    policy = Policy.parse_short(f"ntp: {text} -> dns")
    assert policy.metrics == {NTP, SOURCES}
    engine = Engine()
    engine.set(policy, 0)
    moved = []
    for second, packets in enumerate([5] * 20 + [500] * 40 + [5] * 5, 1):
        few = Estimate(2, 2, 2) if packets == 5 else Estimate(9, 9, 9)
        selected = {NTP: count(packets), SOURCES: few}
        at = second * 1_000_000_000
        moved += [(second, each.cause) for each in engine.window(row(**FLOOD), at, 1.0, selected)]
    assert moved == [
        (21, "packets on (proto:udp sport:123) 500 > 5 * baseline(20s) = 25"),
        (61, "sources 2 < 3"),
    ]


def test_columns_of_forgotten_metrics_are_dropped() -> None:
    series = WindowSeries()
    for number in range(300):
        metric = SelectedMetric("packets", f"dport:{number}")
        series.append(row(packets=1), number * 1_000_000_000, 1.0, {metric: count(1)})
    assert len(series._selected) < 140
