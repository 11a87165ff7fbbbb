"""Conditions (S2.11, S2.23): verdicts on given windows, and errors of malformed ones."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from probes.monitor.condition import Condition, ConditionError, terms
from probes.monitor.condition.series import METRIC_NAMES, WindowSeries
from tests.probes.monitor.windows import row, series_of

Window = Mapping[str, float]
USUAL = {
    "packets": 1000, "bytes": 64_000, "tcp_packets": 400, "tcp_bytes": 32_000, "udp_packets": 500,
    "udp_bytes": 30_000, "icmp_packets": 50, "icmp_bytes": 1000, "flows": 100,
}  # fmt: skip
FLOOD = USUAL | {"packets": 30_000, "bytes": 1_920_000, "udp_packets": 28_000, "flows": 24_791}
IDLE = dict.fromkeys(USUAL, 0)
AFTER_USUAL = [USUAL] * 70


def verdict(text: str, windows: list[Any], seconds: float = 1.0) -> bool | None:
    return Condition.parse(text).evaluate(series_of(windows, seconds)).holds


@pytest.mark.parametrize(
    ("text", "usual", "flood"),
    [
        ("flows > 10000", False, True),
        ("flows > 10000 and udp_packets / packets > 0.8", False, True),
        ("flows > 10k and udp_packets/packets>80%", False, True),
        ("10000 < flows", False, True),
        ("flows == 100", True, False),
        ("flows != 100", False, True),
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


MALFORMED = [
    ("", 1, "it is empty", "such as flows > 10000"),
    ("flows >", 8, "nothing follows '>'", "a metric or a number should"),
    ("flows > 5 and ", 14, "nothing follows 'and'", "a metric or a number should"),
    ("flows > > 5", 9, "'>' where a metric or a number should be", "such as flows > 10000"),
    ("or flows > 5", 1, "'or' where a metric or a number should be", "such as flows > 10000"),
    ("flow > 5", 1, "'flow' is no metric", "did you mean flows?"),
    ("flows > 5 and UDP_bytes > 1", 15, "'UDP_bytes' is no metric", "did you mean udp_bytes?"),
    ("(flows > 5", 1, "'(' is not closed", ""),
    ("flows > avg(packets, 5s", 12, "'(' is not closed", ""),
    ("flows > 5)", 10, "')' closes nothing", ""),
    ("flows", 1, "'flows' alone is no condition", "compare it, such as flows > 10000"),
    ("flows > 5 or 80%", 14, "'80%' alone is no condition", "compare it, such as flows > 80%"),
    ("5 > 3", 1, "no metric is compared here", "such as flows > 10000"),
    ("1 < flows < 5", 11, "comparisons are not chained", "write 1 < flows and flows < ..."),
    ("flows = 5", 7, "'=' is not understood", "write =="),
    ("flows > 5 and packets = 3", 23, "'=' is not understood", "write =="),
    ("flows > 5 && packets > 3", 11, "'&&' is not understood", "write and"),
    ("flows > 5 || packets > 3", 11, "'||' is not understood", "write or"),
    ("!flows > 5", 1, "'!' is not understood", "write not"),
    ("flows \u2265 5", 7, "'\u2265' is not understood", "write >="),
    ("flows > 5 \u2713", 11, "'\u2713' is not understood", ""),
    ("flows > 5 AND packets > 3", 11, "an operator is missing before 'AND'", "write and"),
    ("flows > 5 baseline(60s)", 11, "an operator is missing before 'baseline'",
     "such as *, > or and"),
    ("flows > 10 % packets", 14, "'packets' follows a percentage", "there is no remainder"),
    ("flows % 5 > 1", 7, "'%' is not understood", "it only follows a number: 80%"),
    ("flows > 10,000", 11, "',' is only between what a function takes", "10,000 is 10000 or 10k"),
    ("__import__('os')", 1, "'__import__' is no function",
     "there are rate, avg, min, max, sum, baseline"),
    ("flows(60s) > 5", 1, "'flows' is no function", "write flows, or avg(flows, 60s)"),
    ("flows > 5K", 10, "'K' is no unit", "did you mean k?"),
    ("rate(bytes) > 100Mbps", 18, "'Mbps' is no unit",
     "bits are bit, per second is /s: 100Mbit/s, 10k/s"),
    ("flows > 1e999", 9, "'1e999' is too large", ""),
    ("flows > 5s", 9, "5s is a time", "only avg, min, max, sum, baseline take one"),
    ("avg(packets) > 5", 12, "avg() without a time", "write avg(packets, 60s)"),
    ("avg(packets, 60) > 5", 14, "avg() needs a time here", "write 60s"),
    ("avg(packets, 2h) > 5", 14, "a time is above 0 and at most 1h, not 2h", ""),
    ("max(60s) > 5", 5, "max() without what it is of", "such as max(packets, 60s)"),
    ("avg(packets 60s) > 5", 13, "a comma is missing before '60s'", ""),
    ("avg(flows > 5, 60s) > 1", 11, "'>' where ',' or ')' should be", ""),
    ("rate > 5", 1, "rate is a function", "such as rate(packets)"),
    ("rate(packets, 60s) > 5", 13, "rate() has no time", "write avg(rate(packets), 60s)"),
    ("max(avg(packets, 5s), 60s) > 5", 5, "'avg(packets, 5s)' can't be within max()", ""),
    ("rate(avg(packets, 5s)) > 5", 6, "'avg(packets, 5s)' can't be within rate()",
     "write avg(rate(packets), 5s)"),
    ("sum(5, 60s) > 5", 5, "'5' in sum() is no metric", "such as sum(packets, 60s)"),
    ("flows - baseline(60s) > 100", 9, "baseline(60s) can't be of '100', the other side",
     "name the metric: baseline(flows, 60s)"),
    ("(flows > 5) > 3", 1, "'flows > 5' is a condition, not a quantity",
     "and, or and not join conditions"),
    ("(" * 500, 21, "more than 20 levels", ""),
    ("flows > " + "-" * 500 + "5", 29, "more than 20 levels", ""),
    ("not " * 200 + "flows > 5", 81, "more than 20 levels", ""),
    ("(" * 10_000, 1001, "it is longer than 1000 characters", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "problem", "hint"), MALFORMED)
def test_malformed(text: str, column: int, problem: str, hint: str) -> None:
    """S2.11: the error names the column and the right syntax."""
    with pytest.raises(ConditionError) as caught:
        Condition.parse(text, where="policy 'x': condition")
    error = caught.value
    assert (error.column, error.problem, error.hint) == (column, problem, hint)
    assert error.message == f"policy 'x': condition, column {column}: {problem}"


@pytest.mark.parametrize(
    ("text", "column", "problem", "hint"),
    [
        ("packets > 100k/s", 9, "packets can't be compared with a number per second",
         "write rate(packets)"),
        ("avg(udp_packets, 5s) > 1/s", 22, "packets can't be compared with a number per second",
         "write avg(rate(udp_packets), 5s)"),
        ("rate(bytes) > 5MB", 13, "bytes per second can't be compared with bytes", "write 5MB/s"),
        ("rate(bytes) + bytes > 5", 13, "bytes per second and bytes can't be added",
         "write rate(bytes)"),
        ("packets + bytes > 5", 9, "packets and bytes can't be added", ""),
        ("flows > packets", 7, "flows can't be compared with packets", ""),
        ("packets > 5MB", 9, "packets can't be compared with bytes", ""),
        ("udp_packets > 80%", 13, "packets can't be compared with a ratio",
         "a ratio has one unit twice, as udp_packets / packets"),
        ("bytes / packets > 1kB/s", 17,
         "bytes per packet can't be compared with bytes per second", ""),
        ("flows > baseline(60s) * packets", 7,
         "flows can't be compared with packets times flows", ""),
        ("rate(bytes / packets) > 5", 6,
         "rate() is of packets, bytes or flows, not of bytes per packet", ""),
        ("rate(rate(flows)) > 5", 6,
         "rate() is of packets, bytes or flows, not of flows per second", ""),
    ],
)  # fmt: skip
def test_units_that_do_not_fit(text: str, column: int, problem: str, hint: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition.parse(text)
    error = caught.value
    assert (error.column, error.problem, error.hint) == (column, problem, hint)


@pytest.mark.parametrize(
    "text",
    [
        "packets > 5 + 3 * udp_packets - 2k",
        "rate(packets) > 100 and rate(packets) > 100/s",
        "rate(bytes) > 5M/s and rate(bytes) > 5MB/s and bytes > 8kbit",
        "bytes / packets > 100 and bytes / flows > 100B",
        "rate(packets) / 10k/s > 80% and udp_bytes / bytes > 80% * 0.5",
        "rate(flows) > flows / packets * rate(packets)",
        "sum(udp_bytes, 10s) / sum(bytes, 10s) > 1 - 20%",
        "packets * (bytes / packets) > 3kB",
        "baseline(rate(bytes), 5s) * 150% < rate(bytes) + 10kB/s",
    ],
)
def test_units_that_fit(text: str) -> None:
    assert Condition.parse(text).evaluate(series_of(AFTER_USUAL)).holds is not None


def test_text_has_one_way_of_writing() -> None:
    condition = Condition.parse(
        " 5*(baseline( 500 ms )+ 2k)<flows and(  not (bytes/2>80 MB or flows<5))"
    )
    again = "flows > 5 * (baseline(500ms) + 2k) and not (bytes / 2 > 80MB or flows < 5)"
    assert condition.text == again
    assert Condition.parse(again) == condition
    assert condition.span == 0.5
    assert Condition.parse("avg(flows, 2m) - min(flows, 1h) > max(flows, 90s)").span == 3600


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
        ("flows == 1000", True, False),
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


# Whatever is given


PIECES = st.sampled_from(
    [
        *METRIC_NAMES, "rate", "avg", "baseline", "and", "or", "not", "(", ")", ",", "+", "-", "*",
        "/", ">", ">=", "==", "=", "%", "0", "5", "1e6", "80%", "10k/s", "5MB", "60s", "1h", "flow",
        "'", "\u2265", "\ud800", "avg(packets, 5s)", "flows > 5", "baseline(60s)", "\n", "x" * 50,
    ]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=1200), st.lists(PIECES, max_size=60).map(" ".join)))
@example("(" * 1000)
@example("((flows" + "+1" * 490)
@example("max(" * 250)
@example("flows>" + "-(" * 497)
@example("a" * 1000)
@example("5" * 1000)
@example("flows > 5" + "\u0130" * 900)
@example(" and ".join(["flows > baseline(5s)"] * 40))
def test_no_text_is_trouble(text: str) -> None:
    series = series_of([USUAL, FLOOD])

    def judged() -> tuple[float, ConditionError | None, str]:
        start = time.thread_time()
        try:
            error, words = None, Condition.parse(text).evaluate(series).summary
        except ConditionError as caught:
            error, words = caught, ""
        return time.thread_time() - start, error, words

    _, error, words = judged()
    assert len(words.encode()) <= 256
    if error:
        assert 1 <= error.column <= len(text) + 1
        assert str(error).isprintable()
    assert any(judged()[0] < 0.05 for _ in range(5))


# Evaluate only the condition: its text, and a function of windows that means the same


Function = Callable[[list[Window], int], float]
Pair = tuple[str, Function]


def divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def binary(symbol: str, one: Pair, two: Pair) -> Pair:
    operations: dict[str, Callable[[float, float], float]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "/": divided,
    }
    operation, a, b = operations[symbol], one[1], two[1]
    return f"({one[0]}) {symbol} ({two[0]})", lambda w, i: operation(a(w, i), b(w, i))


def over(name: str, seconds: int, of: Pair) -> Pair:
    functions: dict[str, Callable[[list[float]], float]] = {
        "avg": statistics.fmean,
        "min": min,
        "max": max,
        "sum": math.fsum,
        "baseline": statistics.median,
    }

    def evaluated(windows: list[Window], last: int) -> float:
        numbers = range(last - seconds + 1, last + 1)
        if name == "baseline":
            numbers = range(min(last - seconds, last - 3), last)
        known = [of[1](windows, number) for number in numbers]
        known = [value for value in known if not math.isnan(value)]
        assume(len(known) >= 3 or (known and name != "baseline"))
        return functions[name](known)

    return f"{name}({of[0]}, {seconds}s)", evaluated


NUMBERS = st.integers(0, 2000).map(lambda n: (str(n), lambda w, i: float(n)))


def metric(name: str) -> Pair:
    return name, lambda w, i: w[i][name]


PACKETS = st.sampled_from(["packets", "udp_packets", "icmp_packets"]).map(metric)


def sums(of: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    scaled = st.builds(binary, st.sampled_from("*/"), of, NUMBERS)
    shares = st.builds(binary, st.just("/"), of, of)
    return st.one_of(
        st.builds(binary, st.sampled_from("+-"), of, st.one_of(of, NUMBERS)),
        scaled,
        st.builds(binary, st.just("*"), of, shares),
    )


QUANTITIES = st.recursive(PACKETS, sums, max_leaves=5)
OVER = st.builds(
    over, st.sampled_from(["avg", "min", "max", "sum", "baseline"]), st.integers(1, 8), QUANTITIES
)
TERMS = st.recursive(st.one_of(PACKETS, OVER), sums, max_leaves=5)
WINDOWS = st.lists(
    st.fixed_dictionaries(
        {name: st.integers(0, 1000) for name in ("packets", "udp_packets", "icmp_packets")}
    ),
    min_size=12,
    max_size=20,
)


@settings(max_examples=80, deadline=None)
@given(WINDOWS, TERMS, st.sampled_from([">", ">=", "<", "<="]), st.one_of(TERMS, NUMBERS))
def test_evaluation_is_that_of_arithmetic(
    windows: list[Window], left: Pair, symbol: str, right: Pair
) -> None:
    last = len(windows) - 1
    a, b = left[1](windows, last), right[1](windows, last)
    # Sums of other orders differ in the last digit.
    assume(a == b or not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9))
    assume("avg" not in left[0] + right[0] or a != b)
    expected = {">": a > b, ">=": a >= b, "<": a < b, "<=": a <= b}[symbol]
    text = f"{left[0]} {symbol} {right[0]}"
    assert verdict(text, windows) is expected
    assert verdict(f"not ({text}) and packets >= 0 or packets < 0", windows) is not expected


# With one packet in each window this is the number of flows, and every sum and product fits.
FLOWS = st.recursive(
    st.sampled_from(["(flows / packets)", "3"]),
    lambda of: st.builds("({} {} {})".format, of, st.sampled_from("+-*/"), of),
    max_leaves=4,
).filter(lambda text: "flows" in text)
OVER_FLOWS = st.builds(
    "{}({}, {}s)".format,
    st.sampled_from(["avg", "min", "max", "sum", "baseline"]),
    FLOWS,
    st.integers(1, 12),
)
CONDITIONS = st.builds(
    "{} {} {}".format,
    st.one_of(FLOWS, OVER_FLOWS),
    st.sampled_from([">", ">=", "<", "<=", "==", "!="]),
    st.one_of(FLOWS, OVER_FLOWS, st.integers(0, 200).map(str)),
)
LIMITS = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)).map(sorted)


@settings(max_examples=150, deadline=None)
@given(CONDITIONS, st.lists(LIMITS, min_size=1, max_size=8), st.data())
def test_certain_is_certain(text: str, limits: list[list[int]], data: st.DataObject) -> None:
    """Whatever the flows are within their limits, it is the same verdict."""
    condition = Condition.parse(text)
    windows = [
        {"packets": 1, "flows_low": low, "flows": mid, "flows_high": high}
        for low, mid, high in limits
    ]
    outcome = condition.evaluate(series_of(windows))
    if outcome.certain:
        real = [
            {"packets": 1, "flows": data.draw(st.integers(low, high))} for low, _, high in limits
        ]
        assert condition.evaluate(series_of(real)).holds is outcome.holds


@settings(max_examples=100, deadline=None)
@given(CONDITIONS, st.lists(st.integers(0, 50), min_size=15, max_size=15), st.integers(1, 12))
def test_known_is_known(text: str, flows: list[int], seen: int) -> None:
    """Whatever was before the windows that were seen, it is the same verdict."""
    assume("avg" not in text and "baseline" not in text)
    condition = Condition.parse(text)
    windows: list[Window] = [{"packets": 1, "flows": count} for count in flows]
    known = condition.evaluate(series_of(windows[-seen:])).holds
    if known is not None:
        assert condition.evaluate(series_of(windows)).holds is known
