"""Random conditions, each a text and a function of windows that means the same.

The evaluation equals the function, and a certain verdict is certain.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bpf.errors import TextError
from probes.monitor.condition import Condition
from probes.monitor.condition.logic import ConditionOutcome
from probes.monitor.condition.series import WindowSeries
from probes.monitor.selected import Estimate, SelectedMetric
from tests.probes.monitor.condition.verdicts import Window, verdict
from tests.probes.monitor.windows import row, series_of

Function = Callable[[list[Window], int], float]
Pair = tuple[str, Function]


def divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def parsed(text: str) -> Condition:
    """Parse a text without a division by a constant 0."""
    try:
        return Condition.parse(text)
    except TextError as error:
        assume(error.problem != "division by 0")
        raise


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


@pytest.mark.slow
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
    parsed(text)
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
    st.sampled_from([">", ">=", "<", "<="]),
    st.one_of(FLOWS, OVER_FLOWS, st.integers(0, 200).map(str)),
)
SELECTED = SelectedMetric("flows", "dst:10.0.0.0/8")


def evaluated_of(text: str, estimates: Sequence[Estimate | None]) -> ConditionOutcome:
    """The outcome of a condition whose flows are of a selection; None: unknown."""
    series = WindowSeries(3600)
    for number, estimate in enumerate(estimates, 1):
        known = {} if estimate is None else {SELECTED: estimate}
        series.append(row(packets=1), number * 1_000_000_000, 1.0, known)
    return Condition.parse(text.replace("flows", str(SELECTED))).evaluate(series)


LIMITS = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50)).map(sorted)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(CONDITIONS, st.lists(LIMITS, min_size=1, max_size=8), st.data())
def test_certain_is_certain(text: str, limits: list[list[int]], data: st.DataObject) -> None:
    """Whatever the flows are within their limits, it is the same verdict: of all packets, and of a
    selection."""
    condition = parsed(text)
    windows = [
        {"packets": 1, "flows_low": low, "flows": mid, "flows_high": high}
        for low, mid, high in limits
    ]
    outcome = condition.evaluate(series_of(windows))
    selected = evaluated_of(text, [Estimate(mid, low, high) for low, mid, high in limits])
    assert (selected.holds, selected.certain) == (outcome.holds, outcome.certain)
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
    condition = parsed(text)
    windows: list[Window] = [{"packets": 1, "flows": count} for count in flows]
    known = condition.evaluate(series_of(windows[-seen:])).holds
    if known is not None:
        assert condition.evaluate(series_of(windows)).holds is known
    # A selection that did not exist in the first windows.
    estimates = [Estimate(n, n, n) for n in flows]
    late = evaluated_of(text, [*[None] * (15 - seen), *estimates[-seen:]]).holds
    if late is not None:
        assert evaluated_of(text, estimates).holds is late
