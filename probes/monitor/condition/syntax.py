"""The language of conditions: parses text to `logic` and `terms`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeAlias

from bpf.errors import TextError, did_you_mean, placed
from bpf.quantities import shown
from probes.monitor.condition import terms
from probes.monitor.condition.logic import (
    MIRRORED,
    OPERATORS,
    Comparison,
    JoinedConditions,
    Logic,
    NotCondition,
)
from probes.monitor.condition.series import METRIC_NAMES
from probes.monitor.condition.tokens import WORDS, Token, TokenReader
from probes.monitor.condition.units import METRIC_COUNTS, RATIO
from probes.monitor.owners.text import is_of_owners
from probes.monitor.selected import OWNER_METRICS, SOCKET_METRICS, UNITS, SelectedMetric

MAX_LENGTH = 2000
MAX_STORED = 8 * MAX_LENGTH
"""Characters of a stored condition, which has the texts of named filters."""
MAX_TIME = 3600.0
"""Seconds."""
EXAMPLE = "such as flows > 10000"
Node: TypeAlias = terms.Expression | Logic
METRICS = tuple(dict.fromkeys((*METRIC_NAMES, *UNITS, *SOCKET_METRICS)))


def parse(
    text: str,
    saved: Mapping[str, str],
    limit: int,
    shape: Callable[[terms.MetricTerm], terms.MetricTerm],
) -> tuple[Logic, float, frozenset[SelectedMetric]]:
    """Return the condition, its longest time in seconds, and its metrics of selections.

    `saved` are filters by name, `limit` is the greatest length, and `shape` replaces each metric.
    Raises TextError.
    """
    with placed(text):
        if len(text) > limit:
            raise TextError(f"it is longer than {limit} characters", "", limit + 1)
        parser = _Parser(text, saved, shape)
        return parser.condition(), parser.span, frozenset(parser.selected)


class _Parser:
    """Recursive descent; the methods follow precedence, from `or` to a name."""

    def __init__(
        self,
        text: str,
        saved: Mapping[str, str],
        shape: Callable[[terms.MetricTerm], terms.MetricTerm],
    ) -> None:
        self._shape = shape
        self.span = 0.0
        self.selected: set[SelectedMetric] = set()
        self._tokens = TokenReader(text, saved)
        self._token = self._tokens.read()
        self._before = ""

    def condition(self) -> Logic:
        if self._token.kind == "end":
            self._fail("it is empty", EXAMPLE)
        column = self._token.column
        root = self._either()
        if self._token.kind != "end":
            self._not_continued()
        return self._logic(root, column)

    def _either(self) -> Node:
        return self._joined("or", lambda: self._joined("and", self._inverted))

    def _joined(self, word: str, operand: Callable[[], Node]) -> Node:
        column = self._token.column
        first = operand()
        if self._token.text != word:
            return first
        of = [self._logic(first, column)]
        while self._take(word):
            column = self._token.column
            of.append(self._logic(operand(), column))
        return JoinedConditions(word, tuple(of))

    def _inverted(self) -> Node:
        if self._token.text != "not":
            return self._compared()
        self._enter()
        column = self._token.column
        inverted = NotCondition(self._logic(self._inverted(), column))
        self._tokens.depth -= 1
        return inverted

    def _compared(self) -> Node:
        start = self._token.column
        left = self._sum()
        if self._token.text not in OPERATORS:
            return left
        left = self._term(left, start)
        symbol, column = self._token.text, self._token.column
        self._next()
        begin = self._token.column
        right = self._term(self._sum(), begin)
        if self._token.text in OPERATORS:
            self._fail(
                "comparisons are not chained",
                f"write {left} {symbol} {right} and {right} {self._token.text} ...",
            )
        self._check_continued()
        sides = _given(left, right), _given(right, left)
        weights = [_weight(side) for side in sides]
        if not any(weights):
            raise TextError("no metric is compared here", "", start, hint=EXAMPLE)
        _check_units(*sides, column)
        _check_exact(symbol, *sides, column)
        _check_share(*sides, start, begin)
        if weights[0] < weights[1]:
            return Comparison(sides[1], MIRRORED[symbol], sides[0])
        return Comparison(sides[0], symbol, sides[1])

    def _sum(self) -> Node:
        return self._chain("+-", lambda: self._chain("*/", self._factor))

    def _chain(self, symbols: str, operand: Callable[[], Node]) -> Node:
        start = self._token.column
        first = operand()
        steps = []
        while self._token.kind == "symbol" and self._token.text in symbols:
            symbol, column = self._token.text, self._token.column
            self._next()
            begin = self._token.column
            term = self._term(operand(), begin)
            if symbol == "/" and terms.constant(term) and not term.band(terms.UNSEEN).value:
                raise TextError("division by 0", "", begin)
            steps.append(terms.Operand(symbol, term, column))
        return terms.Arithmetic(self._term(first, start), tuple(steps)) if steps else first

    def _factor(self) -> Node:
        if self._token.text != "-":
            return self._primary()
        self._enter()
        column = self._token.column
        negative = terms.Negative(self._term(self._factor(), column))
        self._tokens.depth -= 1
        return negative

    def _primary(self) -> Node:
        token = self._token
        if isinstance(token.value, terms.Number):
            self._next()
            return token.value
        if token.kind == "name" and token.text not in WORDS:
            return self._metric()
        if token.text == "(":
            self._enter()
            inner = self._either()
            self._close(token)
            return inner
        if token.kind == "time":
            hint = f"only {', '.join(terms.FUNCTIONS)} take one"
            self._fail(f"{token.text} is a time", hint)
        if token.kind == "wrong":
            self._fail(*token.problem)
        if token.kind == "end":
            self._fail(f"nothing follows {self._before!r}", "a metric or a number should")
        self._fail(f"{token.text!r} where a metric or a number should be", EXAMPLE)

    def _metric(self) -> terms.Expression:
        token = self._token
        functions = ("rate", *terms.FUNCTIONS)
        if token.text in functions:
            self._next()
            return self._called(token)
        if token.text in METRICS:
            self._next()
            return self._of_selection(token)
        if token.text == "s":
            self._fail("'s' is no metric", "rate(packets) is packets per second")
        self._next()
        what, names = ("function", functions) if self._token.text == "(" else ("metric", METRICS)
        problem = f"{shown(token.text)} is no {what}"
        raise TextError(problem, "", token.column, hint=did_you_mean(token.text, names))

    def _of_selection(self, name: Token) -> terms.MetricTerm:
        """A metric with its selection, if one follows: `flows on udp`, or `flows(on udp)`."""
        opening = self._token
        if opening.text == "(":
            self._enter()
            if self._token.text != "on":
                hint = f"write {name.text}, or {terms.FUNCTIONS[0]}({name.text}, 60s)"
                problem = f"{name.text!r} is no function"
                raise TextError(problem, "", name.column, hint=hint)
        of = ""
        if self._token.text == "on":
            if name.text not in (*UNITS, *OWNER_METRICS):
                problem = f"{name.text} is of all packets"
                self._fail(problem, f"{', '.join(UNITS)} may be of a selection")
            start = self._token.column
            of = self._tokens.read_filter()
            known = OWNER_METRICS if is_of_owners(of) else tuple(UNITS)
            if name.text not in known:
                what = "owners" if known is OWNER_METRICS else "packets"
                problem = f"{name.text} is not known of {what}"
                raise TextError(problem, "", start, hint=f"{', '.join(known)} are")
            self._next()
        if opening.text == "(":
            self._close(opening)
        term = self._shape(terms.MetricTerm(name.text, of))
        if term.selected:
            self.selected.add(term.selected)
        return term

    def _called(self, name: Token) -> terms.Expression:
        function = name.text
        example = "rate(packets)" if function == "rate" else f"{function}(packets, 60s)"
        opening = self._token
        if opening.text != "(":
            problem, hint = f"{function} is a function", f"such as {example}"
            raise TextError(problem, "", name.column, hint=hint)
        self._enter()
        if self._token.text == ")" or (self._token.kind == "time" and function != terms.BASELINE):
            self._fail(f"{function}() has no argument", f"such as {example}")
        of = None
        start = self._token.column
        if function != terms.BASELINE or self._token.kind != "time":
            of = self._term(self._sum(), start)
            self._check_of(of, function, start, example)
        if function == "rate":
            assert of
            if self._token.text == ",":
                self._fail("rate() has no time", f"write avg(rate({of}), 60s)")
            self._close(opening)
            return terms.Rate(of)
        if of:
            if self._token.text == ")":
                self._fail(f"{function}() without a time", f"write {function}({of}, 60s)")
            if not self._take(","):
                self._not_continued(opening)
        time, seconds = self._time(function)
        floor = self._floor() if function == terms.BASELINE and self._take(",") else None
        self._close(opening)
        return terms.Over(function, of, seconds, time, name.column, of is None, floor)

    def _floor(self) -> terms.Expression:
        start = self._token.column
        floor = self._term(self._sum(), start)
        if not terms.constant(floor):
            problem = f"the least value of a baseline is a number, not {shown(floor)}"
            raise TextError(problem, "", start, hint="such as baseline(flows, 10m, 500)")
        return floor

    def _check_of(self, of: terms.Expression, function: str, column: int, example: str) -> None:
        for part in terms.parts(of):
            if isinstance(part, terms.Over):
                inner = f"{part.function}(rate({part.of}), {part.time})"
                hint = f"write {inner}" if function == "rate" and part.of else ""
                problem = f"{shown(part)} can't be within {function}()"
                raise TextError(problem, "", part.column, hint=hint)
        if not terms.measured(of):
            problem = f"{shown(of)} in {function}() is no metric"
            raise TextError(problem, "", column, hint=f"such as {example}")
        if (unit := of.unit) not in METRIC_COUNTS.values() and function == "rate":
            problem = f"rate() is of packets, bytes, flows and other counts, not of {unit.label}"
            raise TextError(problem, "", column)

    def _time(self, function: str) -> tuple[str, float]:
        token = self._token
        if token.kind == "wrong":
            self._fail(*token.problem)
        if not isinstance(token.value, float):
            plain = isinstance(token.value, terms.Number) and not token.value.suffix
            hint = f"write {token.text}s" if plain else "such as 60s"
            self._fail(f"{function}() needs a time here", hint)
        if not 0 < token.value <= MAX_TIME:
            self._fail(f"a time is above 0 and at most 1h, not {token.text}")
        self.span = max(self.span, token.value)
        self._next()
        return token.text, token.value

    def _next(self) -> None:
        self._before = self._token.text
        self._token = self._tokens.read()

    def _take(self, text: str) -> bool:
        if self._token.text != text:
            return False
        self._next()
        return True

    def _enter(self) -> None:
        self._tokens.enter(self._token.column - 1)
        self._next()

    def _close(self, opening: Token) -> None:
        if not self._take(")"):
            self._not_continued(opening)
        self._tokens.depth -= 1

    def _term(self, node: Node, column: int) -> terms.Expression:
        if isinstance(node, Logic):
            hint = "and, or and not join conditions"
            problem = f"{shown(node)} is a condition, not a quantity"
            raise TextError(problem, "", column, hint=hint)
        return node

    def _logic(self, node: Node, column: int) -> Logic:
        if not isinstance(node, Logic):
            self._check_continued()
            example = f"flows > {node}" if isinstance(node, terms.Number) else f"{node} > 10000"
            problem, hint = f"{shown(node)} alone is no condition", f"compare it, such as {example}"
            word = self._token.text
            if word in ("and", "or") and isinstance(node, terms.MetricTerm) and node.selection:
                whole = f"{node.name} on ({node.selection} {word} ...)"
                hint = f"a filter with {word} needs parentheses: {whole}"
            raise TextError(problem, "", column, hint=hint)
        return node

    def _check_continued(self) -> None:
        if self._token.kind != "end" and self._token.text not in (")", ",", "and", "or"):
            self._not_continued()

    def _not_continued(self, opening: Token | None = None) -> NoReturn:
        """Raise TextError: the next token cannot follow a complete part."""
        token = self._token
        if token.kind == "end" and opening:
            raise TextError(f"{opening.text!r} is not closed", "", opening.column)
        if token.kind == "wrong":
            self._fail(*token.problem)
        if token.text == ")":
            self._fail("')' closes nothing")
        if token.text == ",":
            self._fail("',' only separates arguments of a function", "10,000 is 10000 or 10k")
        if self._before.endswith("%"):
            self._fail(f"{shown(token.text)} follows a percentage", "there is no remainder")
        if token.text == "on":
            self._fail("'on' follows a metric", "such as rate(packets on proto:udp) > 1k/s")
        if token.text in OPERATORS:
            self._fail(f"{token.text!r} where ',' or ')' should be")
        hint = "" if token.kind == "time" else "such as *, > or and"
        if token.text.lower() in ("and", "or"):
            hint = f"write {token.text.lower()}"
        missing = "a comma" if token.kind == "time" else "an operator"
        self._fail(f"{missing} is missing before {shown(token.text)}", hint)

    def _fail(self, problem: str, hint: str = "") -> NoReturn:
        raise TextError(problem, "", self._token.column, hint=hint)


def _weight(term: terms.Expression) -> int:
    """Rank as the measured side: the higher one is compared with the lower one."""
    return terms.measured(term) + any(
        isinstance(part, terms.MetricTerm) for part in terms.parts(term)
    )


def _given(term: terms.Expression, other: terms.Expression) -> terms.Expression:
    """The term, with `other` (the other side of the comparison) for a bare baseline."""
    unnamed = not terms.measured(other) or any(
        isinstance(part, terms.Over) for part in terms.parts(other)
    )
    for part in terms.parts(term):
        if isinstance(part, terms.Over) and part.of is None and unnamed:
            problem = f"{part} can't be of {shown(other)}, the other side"
            hint = f"name the metric: baseline(flows, {part.time})"
            raise TextError(problem, "", part.column, hint=hint)
    return terms.resolved(term, other)


def _check_exact(symbol: str, left: terms.Expression, right: terms.Expression, column: int) -> None:
    """Refuse == and != of an estimate, except with 0."""
    estimated = (
        part
        for term in (left, right)
        for part in terms.parts(term)
        if isinstance(part, terms.MetricTerm) and part.estimated
    )
    zero = any(isinstance(term, terms.Number) and not term.value for term in (left, right))
    if symbol in ("==", "!=") and not zero and (part := next(estimated, None)):
        problem = f"{symbol} compares exact values, and {shown(part.name)} is an estimate"
        raise TextError(problem, "", column, hint="write >= or <=")


def _check_units(left: terms.Expression, right: terms.Expression, column: int) -> None:
    units = left.unit, right.unit
    if units[0].fits(units[1]):
        return
    hint = terms.rate_hint((left, units[0]), (right, units[1]))
    if not hint and RATIO in units:
        hint = "a ratio has one unit twice, as udp_packets / packets"
    problem = f"{units[0].label} can't be compared with {units[1].label}"
    raise TextError(problem, "", column, hint=hint)


def _check_share(left: terms.Expression, right: terms.Expression, start: int, begin: int) -> None:
    """Refuse a number that a share never reaches; the sides begin at these columns."""
    for share, number, column in ((left, right, begin), (right, left, start)):
        if (
            isinstance(share, terms.MetricTerm)
            and share.unit == RATIO
            and isinstance(number, terms.Number)
            and number.value > 1
        ):
            percent = "" if number.suffix else f"write {number.digits}%"
            problem = f"{share.name} is a share and never above 1"
            raise TextError(problem, "", column, hint=percent)
