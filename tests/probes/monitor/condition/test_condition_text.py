"""The text of a condition: units, one way of writing, and errors of malformed ones."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bpf.errors import TextError
from probes.monitor.condition import Condition
from probes.monitor.condition.series import METRIC_NAMES
from tests.probes.monitor.condition.verdicts import AFTER_USUAL, FLOOD, USUAL
from tests.probes.monitor.windows import series_of

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
    ("flows > 10,000", 11, "',' only separates arguments of a function", "10,000 is 10000 or 10k"),
    ("__import__('os')", 1, "'__import__' is no function",
     "there are rate, avg, min, max, sum, baseline"),
    ("flows(60s) > 5", 1, "'flows' is no function", "write flows, or avg(flows, 60s)"),
    ("bytes > 5Kb", 10, "'Kb' is no unit here", "did you mean kB?"),
    ("rate(packets) > 10kpps", 19, "'kpps' is no unit here",
     "bits are bit, per second is /s: 100Mbit/s, 10k/s"),
    ("flows > 1e999", 9, "'1e999' is too large", ""),
    ("flows > 5s", 9, "5s is a time", "only avg, min, max, sum, baseline take one"),
    ("avg(packets) > 5", 12, "avg() without a time", "write avg(packets, 60s)"),
    ("avg(packets, 60) > 5", 14, "avg() needs a time here", "write 60s"),
    ("avg(packets, 2h) > 5", 14, "a time is above 0 and at most 1h, not 2h", ""),
    ("max(60s) > 5", 5, "max() has no argument", "such as max(packets, 60s)"),
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
    ("(" * 10_000, 2001, "it is longer than 2000 characters", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column", "problem", "hint"), MALFORMED)
def test_malformed(text: str, column: int, problem: str, hint: str) -> None:
    """S2.11: the error names the column and the right syntax."""
    with pytest.raises(TextError) as caught:
        Condition.parse(text)
    error = caught.value
    assert (error.column, error.problem, error.hint) == (column, problem, hint)
    assert error.message == f"{problem} (column {column})"


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
         "rate() is of packets, bytes, flows and other counts, not of bytes per packet", ""),
        ("rate(rate(flows)) > 5", 6,
         "rate() is of packets, bytes, flows and other counts, not of flows per second", ""),
    ],
)  # fmt: skip
def test_units_that_do_not_fit(text: str, column: int, problem: str, hint: str) -> None:
    with pytest.raises(TextError) as caught:
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


PIECES = st.sampled_from(
    [
        *METRIC_NAMES, "rate", "avg", "baseline", "and", "or", "not", "(", ")", ",", "+", "-", "*",
        "/", ">", ">=", "==", "=", "%", "0", "5", "1e6", "80%", "10k/s", "5MB", "60s", "1h", "flow",
        "on", "on udp", "on (udp or", "sources", "top_port", '"', "dport:53,", "!udp",
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

    def judged() -> tuple[float, TextError | None, str]:
        start = time.thread_time()
        try:
            error, words = None, Condition.parse(text).evaluate(series).summary
        except TextError as caught:
            error, words = caught, ""
        return time.thread_time() - start, error, words

    _, error, words = judged()
    assert len(words.encode()) <= 256
    if error:
        assert 1 <= error.column <= len(text) + 1
        assert str(error).isprintable()
    assert any(judged()[0] < 0.05 for _ in range(5))


def test_a_prefix_of_ipv6_is_no_regular_expression() -> None:
    text = "rate(bytes on (!dst:fc00::/7,ff00::/8 udp)) > 3 * baseline(10m, 10Mbit/s)"
    (metric,) = Condition.parse(text).metrics
    assert metric.selection == "!dst:fc00::/7,ff00::/8 udp"
