"""Conditions (S2.11, S2.23): their verdicts on given windows, and how the console words them."""

from __future__ import annotations

import math

import pytest

from probes.monitor.condition import Condition, terms
from probes.monitor.condition.series import WindowSeries
from tests.probes.monitor.condition.verdicts import AFTER_USUAL, FLOOD, IDLE, USUAL, Window, verdict
from tests.probes.monitor.windows import row, series_of


@pytest.mark.parametrize(
    ("text", "usual", "flood"),
    [
        ("flows > 10000", False, True),
        ("flows > 10000 and udp_packets / packets > 0.8", False, True),
        ("flows > 10k and udp_packets/packets>80%", False, True),
        ("10000 < flows", False, True),
        ("packets == 1000", True, False),
        ("packets != 1000", False, True),
        ("not flows > 10000", True, False),
        ("not (flows > 10k or packets > 10k)", True, False),
        ("flows > 10k or tcp_packets > 1k", False, True),
        ("flows > 10k or tcp_packets > 1 and icmp_packets > 1k", False, True),
        ("(flows > 10k or tcp_packets > 1) and icmp_packets > 1k", False, False),
        ("flows > 5 * baseline(60s)", False, True),
        ("flows > 5 * baseline(flows, 60s)", False, True),
        ("5 * baseline(1m) < flows", False, True),
        ("rate(packets) > 2 * baseline(60s) + 10k/s", False, True),
        ("flows > 500% * baseline(30s)", False, True),
        ("flows / packets > 50%", False, True),
        ("rate(packets) > 10k/s", False, True),
        ("rate(bytes) >= 15360 kbit/s", False, True),
        ("rate(bytes) >= 15.361Mbit / s", False, False),
        ("bytes > 1.83MiB and bytes < 1.84MiB", False, True),
        ("bytes >= 1920kB", False, True),
        ("bytes / packets <= 64B", True, True),
        ("bytes > 63B * packets", True, True),
        ("avg(packets, 10s) > 3899", False, True),
        ("avg(packets, 10s) > 3901", False, False),
        ("sum(packets, 10s) == 39k", False, True),
        ("min(packets, 10s) == 1000", True, True),
        ("max(rate(packets), 1h) > 29999/s", None, True),
        ("other_packets == 50 and other_bytes == 1000", True, False),
        ("packets - tcp_packets - udp_packets - icmp_packets == other_packets", True, True),
        ("-(packets - 2 * tcp_packets) * 3 > -6e2 - .5", True, False),
        ("(packets / (tcp_packets / 4)) / 2 == 5", True, False),
    ],
)
def test_verdicts(text: str, usual: bool | None, flood: bool | None) -> None:
    """S2.11"""
    assert verdict(text, AFTER_USUAL) is usual
    assert verdict(text, [*AFTER_USUAL, FLOOD]) is flood


def test_an_idle_window_is_no_error() -> None:
    for text, holds in {
        "udp_packets / packets > 80%": False,
        "udp_packets / packets < 80%": False,
        "udp_packets / packets != 80%": False,
        "not udp_packets / packets > 80%": True,
        "avg(udp_packets / packets, 5s) > 80%": False,
        "(packets + 1) / packets > 1000": True,
        "(packets + 1) / -packets > 1000": True,
        "rate(bytes) == 0/s": True,
    }.items():
        outcome = Condition.parse(text).evaluate(series_of([IDLE] * 9))
        assert (outcome.holds, outcome.certain) == (holds, True)
    # Idle windows do not change the baseline of a share.
    assert verdict("udp_packets / packets > 1.5 * baseline(20s)", [USUAL, IDLE] * 10 + [FLOOD])


class TestBaseline:
    """S2.23: an anomaly is a deviation from the baseline."""

    CONDITION = Condition.parse("flows > 5 * baseline(60s)")

    def test_is_not_known_while_it_learns(self) -> None:
        for seconds, known in ((1.0, 15), (0.1, 150), (10.0, 3), (300.0, 3)):
            for before in range(known + 1):
                series = series_of([*[USUAL] * before, FLOOD], seconds)
                expected = True if before >= known else None
                assert self.CONDITION.evaluate(series).holds is expected, (seconds, before)

    def test_not_known_is_neither_that_nor_the_contrary(self) -> None:
        windows = [FLOOD]
        assert verdict("not flows > 5 * baseline(60s)", windows) is None
        assert verdict("flows > 5 * baseline(60s) or packets > 5", windows) is True
        assert verdict("flows > 5 * baseline(60s) and packets < 5", windows) is False
        assert verdict("flows > 5 * baseline(60s) and packets > 5", windows) is None

    def test_a_few_odd_windows_do_not_change_it(self) -> None:
        assert verdict(self.CONDITION.text, [*[USUAL, USUAL, FLOOD] * 20, FLOOD]) is True
        assert verdict(self.CONDITION.text, [*[USUAL, FLOOD, FLOOD] * 20, FLOOD]) is False

    def test_an_attack_does_not_become_usual(self) -> None:
        """As the engine does it: windows of the attack are not among the quiet ones."""
        series, quiet = WindowSeries(), WindowSeries()
        verdicts = []
        for number, metrics in enumerate([*[USUAL] * 70, *[FLOOD] * 500, *[USUAL] * 5, FLOOD], 1):
            window = row(**metrics)
            series.append(window, number * 1_000_000_000, 1)
            verdicts.append(self.CONDITION.evaluate(series, quiet).holds)
            if not verdicts[-1]:
                quiet.append(window, number * 1_000_000_000, 1)
        assert verdicts == [None] * 15 + [False] * 55 + [True] * 500 + [False] * 5 + [True]
        assert len(quiet) <= 62


def test_what_was_not_seen_may_have_been_anything() -> None:
    for text, after in {
        "sum(packets, 60s) > 4500": (None, None, None, None, True),
        "max(packets, 4s) < 2000": (None, None, None, True, True),
        "max(packets, 4s) >= 1000": (True,) * 5,
        "min(packets, 4s) > 500": (None, None, None, True, True),
        "min(packets, 4s) > 1000": (False,) * 5,
        "sum(tcp_packets - udp_packets, 4s) < 9": (None, None, None, True, True),
        "sum(tcp_packets - udp_packets, 4s) > -500": (None, None, None, True, True),
        "avg(packets, 60s) == 1000": (True,) * 5,
        "max(flows / packets, 4s) < 1000%": (None, None, None, True, True),
    }.items():
        assert tuple(verdict(text, [USUAL] * n) for n in range(1, 6)) == after, text
    assert verdict("flows > 5 or max(flows, 5s) < 3", []) is None
    assert verdict("flows < 0", []) is False


def test_a_new_function_needs_limits_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of another function would be wrong without a word."""
    monkeypatch.setitem(terms._REDUCE, "range", lambda x, _: x.max() - x.min())
    series = series_of([USUAL, USUAL])
    over = terms.Over("range", terms.MetricTerm("packets"), 3600, "1h", 1, alone=False)
    with pytest.raises(NotImplementedError, match="limits of range"):
        over.band(terms.WindowSelection(series, None, slice(2)))


def test_windows_differ_in_length() -> None:
    series = WindowSeries()
    for end, seconds, packets in ((1, 1, 1000), (2, 1, 1000), (2.25, 0.25, 500)):
        series.append(row(packets=packets), round(end * 1e9), seconds)
    for text in (
        "packets == 500",
        "rate(packets) == 2k/s",
        "max(rate(packets), 5s) == 2k/s",
        "avg(rate(packets), 5s) * 9 == 10k/s",
        "avg(packets, 5s) * 9 == 8500",
    ):
        outcome = Condition.parse(text).evaluate(series)
        assert outcome.comparisons[0].value == pytest.approx(outcome.comparisons[0].threshold), text


@pytest.mark.parametrize(
    ("text", "holds", "certain"),
    [
        ("flows > 900", True, True),
        ("flows > 960", True, False),
        ("flows > 1040", False, False),
        ("flows > 1060", False, True),
        ("flows > 960 and packets > 5000", False, True),
        ("flows > 960 or packets > 500", True, True),
        ("not flows > 1040", True, False),
        ("-flows < -960", True, False),
        ("1 / flows < 0.00104", True, False),
        ("3000 - flows > 1960", True, False),
        ("flows * flows / packets > 1100", False, False),
        ("packets / (flows - 940) > 1", True, True),
        ("packets / (flows - 1000) > 1", True, False),
        ("packets / (flows - 990) < 200", True, False),
        ("avg((flows - 1000) / (flows - 1000), 2s) > 0", True, False),
        ("avg((flows - 1000) / (flows - 1000), 1s) > 0", False, False),
        ("rate(flows) > 960/s", True, False),
        ("avg(flows, 2s) > 555", False, False),
        ("max(flows, 2s) > 555", True, True),
        ("flows > 9.7 * baseline(flows, 20s)", True, False),
        ("flows > 8 * baseline(flows, 20s)", True, True),
    ],
)
def test_error_of_the_estimate(text: str, holds: bool, certain: bool) -> None:
    """Whether it is the same verdict wherever in its limits the number of flows lies."""
    before = {"packets": 1000, "flows": 100, "flows_low": 95, "flows_high": 105}
    last = {"packets": 1000, "flows": 1000, "flows_low": 950, "flows_high": 1050}
    outcome = Condition.parse(text).evaluate(series_of([*[before] * 30, last]))
    assert (outcome.holds, outcome.certain) == (holds, certain)


def test_sides_are_told() -> None:
    windows: list[Window] = [USUAL] * 70
    last = FLOOD | {"flows_low": 24_000, "flows_high": 25_600}
    outcome = Condition.parse("packets > 5M or 5 * baseline(60s) < flows").evaluate(
        series_of([*windows, last])
    )
    first, second = outcome.comparisons
    assert outcome.deciding is second
    assert second.text == "flows > 5 * baseline(60s)"
    sides = (second.value, second.low, second.high, second.threshold)
    assert sides == (24_791, 24_000, 25_600, 500)
    assert (first.value, first.threshold, first.holds, first.certain) == (30_000, 5e6, False, True)
    unknown = Condition.parse("packets > 5 and flows > baseline(60s)").evaluate(series_of([last]))
    assert unknown.deciding is unknown.comparisons[1]
    assert math.isnan(unknown.deciding.threshold)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flows > 10000 and udp_packets / packets > 80%",
         "flows 24791 > 10000, udp_packets / packets 93.3 % > 80 %"),
        ("flows > 5 * baseline(60s)", "flows 24791 > 5 * baseline(60s) = 500"),
        ("flows > 1M or rate(bytes) > 10Mbit/s", "rate(bytes) 15.4 Mbit/s > 10 Mbit/s"),
        ("flows > 5 and packets < 5", "packets 30000 >= 5"),
        ("not bytes < 1kB", "bytes 1920 kB >= 1 kB"),
        ("flows > 24790.9", "flows 24791 > 24790.9"),
        ("flows > -5", "flows 24791 > -5"),
        ("flows > 5 and flows > baseline(1h)", "flows > baseline(1h) is not known yet"),
        ("(icmp_packets - 50) / (icmp_packets - 50) > 0.5",
         "(icmp_packets - 50) / (icmp_packets - 50) is 0 / 0"),
    ],
)  # fmt: skip
def test_words(text: str, words: str) -> None:
    assert Condition.parse(text).evaluate(series_of([*AFTER_USUAL, FLOOD])).summary == words


def test_words_with_an_error() -> None:
    window = {"flows": 10_100, "flows_low": 9_800.4, "flows_high": 10_400}
    outcome = Condition.parse("flows > 10k").evaluate(series_of([window]))
    assert outcome.summary == "flows 10.1 k (9.8 to 10.4) > 10 k"


def test_words_fit_their_field() -> None:
    parts = [f"udp_packets + {n} > {n}" for n in range(30)]
    outcome = Condition.parse(" and ".join(parts)).evaluate(series_of([FLOOD]))
    assert 230 < len(outcome.summary.encode()) <= 256
    assert outcome.summary.endswith(", ...")
    long = Condition.parse(" + ".join(["udp_packets"] * 60) + " > 5").evaluate(series_of([FLOOD]))
    assert len(long.summary.encode()) == 256
