"""Comparisons, logical operators, and their results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import isnan
from typing import NamedTuple, TypeAlias

from probes.monitor.condition.band import Band, Samples
from probes.monitor.condition.terms import (
    BASELINE,
    Expression,
    Number,
    Over,
    WindowSelection,
    parts,
)

MAX_SUMMARY = 256
"""Bytes of `ConditionOutcome.summary`."""
OPERATORS: dict[str, Callable[[Samples, Samples], Samples]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
OPPOSITES = {">": "<=", ">=": "<", "<": ">=", "<=": ">", "==": "!=", "!=": "=="}
MIRRORED = {">": "<", ">=": "<=", "<": ">", "<=": ">=", "==": "==", "!=": "!="}
"""The operator after its sides are exchanged."""


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    of: Comparison
    value: float
    """The left, measured side; NaN if it is unknown, or 0 / 0."""
    low: float
    high: float
    """Limits of the value, from the error of the estimate of flows and from unseen windows."""
    threshold: float
    """The right side; NaN as above."""
    holds: bool | None
    """None: unknown."""
    certain: bool
    """Whether the result is the same at all limits of both sides."""

    @property
    def text(self) -> str:
        return self.of.text

    @property
    def unit(self) -> str:
        return self.of.unit

    @property
    def typed(self) -> tuple[float, str]:
        """The value in the unit in which the threshold was typed, and that unit: 1620, `kbit/s`."""
        right = self.of.right
        if isinstance(right, Number) and right.suffix:
            return self.value / right.scale, right.suffix
        return self.value, self.unit

    @property
    def summary(self) -> str:
        """`udp_packets / packets 93 % > 80 %`: the true relation, or why it is unknown."""
        left, symbol, right = self.of.left, self.of.symbol, self.of.right
        if self.holds is None:
            return f"{self.text} is not known yet"
        if isnan(self.value) or isnan(self.threshold):
            undefined = "" if self.holds else " does not hold"
            return f"{left} is 0 / 0" if isnan(self.low) else self.text + undefined
        symbol = symbol if self.holds else OPPOSITES[symbol]
        scale, suffix = (right.scale, right.suffix) if isinstance(right, Number) else (1.0, "")
        unit = f" {suffix}" if suffix else ""
        value, threshold = _figures(self.value / scale, self.threshold / scale)
        said = f"{left} {value}{unit}"
        if not self.certain and self.low < self.high:
            low, high = _figures(self.low / scale, self.high / scale)
            said += f" ({low} to {high})"
        if isinstance(right, Number):
            threshold += unit
        elif str(right) != threshold:
            threshold = f"{right} = {threshold}"
        return f"{said} {symbol} {threshold}"


@dataclass(frozen=True, slots=True)
class ConditionOutcome:
    holds: bool | None
    """None: unknown, which neither activates nor deactivates."""
    certain: bool
    """Whether the result is known, and the same for any number of flows within the limits."""
    comparisons: tuple[ComparisonResult, ...]
    """All comparisons, in order."""
    reasons: tuple[ComparisonResult, ...]
    """The deciding comparisons; if the result is unknown, the unknown ones."""

    @property
    def deciding(self) -> ComparisonResult:
        return self.reasons[0]

    @property
    def summary(self) -> str:
        """`flows 24791 > 10000, udp_packets / packets 93 % > 80 %`: ASCII, at most MAX_SUMMARY."""
        text = self.deciding.summary
        for reason in self.reasons[1:]:
            more = f"{text}, {reason.summary}"
            if len(more) > MAX_SUMMARY - len(", ..."):
                text += ", ..."
                break
            text = more
        return text if len(text) <= MAX_SUMMARY else f"{text[: MAX_SUMMARY - 3]}..."


class Judgement(NamedTuple):
    """Result of a part of a condition."""

    holds: bool | None
    sure: bool | None
    """The result at all limits; None if it differs between them."""
    comparisons: tuple[ComparisonResult, ...]
    reasons: tuple[ComparisonResult, ...]


@dataclass(frozen=True)
class Comparison:
    """Two quantities."""

    left: Expression
    symbol: str
    right: Expression

    def __str__(self) -> str:
        return self.text

    @cached_property
    def terms(self) -> tuple[Expression, ...]:
        return (*parts(self.left), *parts(self.right))

    @cached_property
    def baselines(self) -> tuple[Over, ...]:
        return tuple(p for p in self.terms if isinstance(p, Over) and p.function == BASELINE)

    @cached_property
    def text(self) -> str:
        """`udp_packets / packets > 80%`."""
        return f"{self.left} {self.symbol} {self.right}"

    @cached_property
    def unit(self) -> str:
        """The threshold's unit without a prefix, else the value's unit: `bit/s`, `B`, `/s`, `%`;
        empty for plain numbers."""
        left, right = self.left.unit, self.right
        suffix = right.suffix if isinstance(right, Number) else ""
        size = left.bytes == 1 and not any(left[:1] + left[2:-1])
        name = "%" if suffix == "%" else "bit" if "bit" in suffix else "B" * (size or "B" in suffix)
        return f"{name}/s" if left.seconds == -1 else name

    def judge(self, windows: WindowSelection, whole: bool = True) -> Judgement:
        left, right = self.left.band(windows), self.right.band(windows)
        seen = left.seen and right.seen
        holds = sure = None if seen else _by_limits(self.symbol, left, right)
        if seen:
            defined = left.value == left.value and right.value == right.value
            holds = bool(defined and OPERATORS[self.symbol](left.value, right.value))
            exact = left.exact and right.exact
            sure = holds if exact else _by_limits(self.symbol, left, right)
        comparison = ComparisonResult(
            self,
            float(left.value),
            float(left.low),
            float(left.high),
            float(right.value),
            holds,
            holds is not None and sure is holds,
        )
        return Judgement(holds, sure, (comparison,), (comparison,))


@dataclass(frozen=True, slots=True)
class NotCondition:
    of: Logic

    def __str__(self) -> str:
        return f"not ({self.of})" if isinstance(self.of, JoinedConditions) else f"not {self.of}"

    def judge(self, windows: WindowSelection, whole: bool = True) -> Judgement:
        judged = self.of.judge(windows, whole)
        return judged._replace(holds=_contrary(judged.holds), sure=_contrary(judged.sure))


@dataclass(frozen=True, slots=True)
class JoinedConditions:
    """Several conditions: all (`and`) or one (`or`) must hold."""

    word: str
    of: tuple[Logic, ...]

    def __str__(self) -> str:
        inner = (
            f"({p})" if isinstance(p, JoinedConditions) and p.word == "or" else str(p)
            for p in self.of
        )
        return f" {self.word} ".join(inner)

    def judge(self, windows: WindowSelection, whole: bool = True) -> Judgement:
        """Without `whole`, leave out the parts after one that decides for certain."""
        judged, decides = [], self.word == "or"
        for part in self.of:
            judged.append(part.judge(windows, whole))
            if not whole and judged[-1].holds is decides is judged[-1].sure:
                break
        holds = self._verdict(part.holds for part in judged)
        return Judgement(
            holds,
            self._verdict(part.sure for part in judged),
            tuple(c for part in judged for c in part.comparisons),
            tuple(c for part in judged if part.holds is holds for c in part.reasons),
        )

    def _verdict(self, verdicts: Iterable[bool | None]) -> bool | None:
        found = set(verdicts)
        decides = self.word == "or"
        if decides in found:
            return decides
        return None if None in found else not decides


Logic: TypeAlias = Comparison | NotCondition | JoinedConditions


def comparisons(of: Logic) -> Iterator[Comparison]:
    """Yield all comparisons, in order."""
    match of:
        case Comparison():
            yield of
        case NotCondition(inner):
            yield from comparisons(inner)
        case JoinedConditions(_, inners):
            for each in inners:
                yield from comparisons(each)


def _contrary(verdict: bool | None) -> bool | None:
    return None if verdict is None else not verdict


def _by_limits(symbol: str, left: Band, right: Band) -> bool | None:
    """Whether the comparison holds at all limits; None if it differs between them."""
    if symbol in ("<", "<="):
        return _by_limits(MIRRORED[symbol], right, left)
    if symbol == "!=":
        return _contrary(_by_limits("==", left, right))
    if symbol == "==":
        if left.low > right.high or left.high < right.low:
            return False
        return True if left.low == left.high == right.low == right.high else None
    if OPERATORS[symbol](left.low, right.high):
        return True
    return False if OPERATORS[OPPOSITES[symbol]](left.high, right.low) else None


def _figures(a: float, b: float) -> tuple[str, str]:
    short = _figure(a), _figure(b)
    return short if short[0] != short[1] or a == b else (f"{a:.9g}", f"{b:.9g}")


def _figure(value: float) -> str:
    return f"{value:.0f}" if 100 <= abs(value) < 1e15 else f"{value:.3g}"
