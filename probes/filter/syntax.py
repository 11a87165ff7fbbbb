"""The grammar: parses text to a tree of terms with columns; it knows no fields."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from bpf.arrays import Array
from bpf.errors import TextError, did_you_mean
from probes.filter.conjunction import Conjunction, inverse, merged
from probes.filter.fields import Test, Value
from probes.filter.table import RowTable
from probes.language import MAX_DEPTH, TextReader

MAX_LENGTH = 8192
MAX_CONJUNCTIONS = 64
"""Bits that the monitor has for the conjunctions of all selections."""
_SELECTS = (
    "selections take protocols, ports, ICMP types, addresses, IP versions, TCP flags and VLANs"
)
_NO_NAMES = "[filters] of the configuration has them; for policies, [filters] of their file"
_FIELD = re.compile(r"([A-Za-z_]\w*)(?:(:)|\s*(<=|>=|!=|==|[<>=])\s*)")
_PLAIN = re.compile(r"[^\s,()]+")
_QUOTED = {"/": re.compile(r"/((?:[^/\\]|\\.)*)/"), '"': re.compile(r'"((?:[^"\\]|\\.)*)"')}
_JOINED = re.compile(r"(and|or|not)(?![^\s()])")


@dataclass(frozen=True, slots=True)
class Term:
    """Alternative values of one field."""

    field: str
    """Empty for a bare word."""
    operator: str
    """`:`, or one of `=`, `<`, `<=`, `>`, `>=`."""
    values: tuple[Value, ...]
    text: str
    column: int
    tests: tuple[Test, ...] = ()
    """Tests of the values, once the fields are known."""
    origin: str = ""
    """The saved filter that contains the term, for messages."""

    def __str__(self) -> str:
        return self.text

    def terms(self) -> Iterator[Term]:
        yield self

    def bound(self, bind: Callable[[Term], tuple[Test, ...]]) -> Term:
        try:
            return replace(self, tests=bind(self))
        except TextError as error:
            raise TextError(
                self.origin + error.problem, "", error.column, hint=error.hint
            ) from None

    def mask(self, table: RowTable) -> Array:
        passed: Array = np.logical_or.reduce([test.mask(table) for test in self.tests])
        return passed

    def to_c(self) -> str:
        if not all(test.c for test in self.tests):
            raise TextError(
                f"{self.text!r} can't choose what is captured",
                "",
                self.column,
                hint="it can filter what is shown",
            )
        return "(" + " || ".join(f"({test.c})" for test in self.tests) + ")"

    def conjunctions(self, negated: bool = False) -> tuple[Conjunction, ...]:
        alternatives: list[Conjunction] = []
        for test in self.tests:
            if not test.within:
                raise TextError(
                    f"{self.text!r} can't select packets", "", self.column, hint=_SELECTS
                )
            alternatives += test.within
        found = merged(alternatives)
        return inverse(found) if negated else found


@dataclass(frozen=True, slots=True)
class Not:
    of: Node
    column: int
    within: bool = False
    """Whether the text of the term contains the negation: `a!=b`."""

    def __str__(self) -> str:
        return str(self.of) if self.within else f"!{self.of}"

    def terms(self) -> Iterator[Term]:
        return self.of.terms()

    def bound(self, bind: Callable[[Term], tuple[Test, ...]]) -> Not:
        return replace(self, of=self.of.bound(bind))

    def mask(self, table: RowTable) -> Array:
        return np.logical_not(self.of.mask(table))

    def to_c(self) -> str:
        return f"!{self.of.to_c()}"

    def conjunctions(self, negated: bool = False) -> tuple[Conjunction, ...]:
        return self.of.conjunctions(not negated)


@dataclass(frozen=True, slots=True)
class Joined:
    """Several nodes: all (`and`) or one (`or`) must hold."""

    word: str
    of: tuple[Node, ...]
    column: int

    def __str__(self) -> str:
        return f"({self.inside})"

    @property
    def inside(self) -> str:
        """Without parentheses."""
        return (" or " if self.word == "or" else " ").join(map(str, self.of))

    def terms(self) -> Iterator[Term]:
        for part in self.of:
            yield from part.terms()

    def bound(self, bind: Callable[[Term], tuple[Test, ...]]) -> Joined:
        return replace(self, of=tuple(part.bound(bind) for part in self.of))

    def mask(self, table: RowTable) -> Array:
        join = np.logical_or if self.word == "or" else np.logical_and
        passed: Array = join.reduce([part.mask(table) for part in self.of])
        return passed

    def to_c(self) -> str:
        word = " || " if self.word == "or" else " && "
        return f"({word.join(part.to_c() for part in self.of)})"

    def conjunctions(self, negated: bool = False) -> tuple[Conjunction, ...]:
        parts = [part.conjunctions(negated) for part in self.of]
        if (self.word == "or") != negated:
            return self._checked(merged(chain.from_iterable(parts)))
        found = parts[0]
        for alternatives in parts[1:]:
            found = self._checked(merged(one & other for one in found for other in alternatives))
        return found

    def _checked(self, found: tuple[Conjunction, ...]) -> tuple[Conjunction, ...]:
        if len(found) > MAX_CONJUNCTIONS:
            text = f"{self.inside[:40]!r} has {len(found)} combinations of header fields"
            raise TextError(text, "", self.column, hint=f"the monitor takes {MAX_CONJUNCTIONS}")
        return found


Node = Term | Not | Joined


def tree(text: str, saved: Mapping[str, str]) -> Node | None:
    """Parse a text to a tree; None if it is empty. Raises TextError.

    `saved` are filters by name. Mistakes in a saved filter have the column of its name.
    """
    found = _Parser(text, saved).tree()
    if "@" in text:
        # The limits hold for the text without names, too: it is stored and parsed again.
        try:
            _Parser(str(found), {}).tree()
        except TextError as error:
            problem = f"{error.problem} with the saved filters"
            raise TextError(problem, "", 1, hint=error.hint) from None
    return found


class _Parser(TextReader):
    """Recursive descent; the methods follow precedence, from `or` to a value."""

    def __init__(self, text: str, saved: Mapping[str, str], within: tuple[str, ...] = ()) -> None:
        """`within`: the saved filters that contain the text, outermost first."""
        super().__init__(text, len(within))
        self._saved = saved
        self._within = within

    def tree(self) -> Node | None:
        if len(self.text) > MAX_LENGTH:
            self.refuse(f"it is longer than {MAX_LENGTH} characters", at=MAX_LENGTH)
        self.skip()
        if self._ended:
            return None
        found = self._either()
        if not self._ended:
            self.refuse("')' closes nothing")
        return found

    def _either(self) -> Node:
        column, parts = self.at + 1, [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return _joined("or", parts, column)

    def _all(self) -> Node:
        column, parts = self.at + 1, [self._inverted()]
        while not self._ended and self.text[self.at] != ")" and self._word() != "or":
            self._take("and")
            parts.append(self._inverted())
        return _joined("and", parts, column)

    def _inverted(self) -> Node:
        column = self.at + 1
        if not (self.text.startswith("!", self.at) or self._word() == "not"):
            return self._primary()
        self.enter()
        self.skip(1 if self.text[self.at] == "!" else 3)
        found = Not(self._inverted(), column)
        self.depth -= 1
        return found

    def _primary(self) -> Node:
        if self._ended or self.text[self.at] == ")":
            self.refuse("a term is missing", hint="such as port:443")
        if self._word():
            self.refuse(f"a term is missing before {self._word()!r}", hint="it joins two terms")
        if self.text[self.at] == "(":
            return self._group()
        if self.text[self.at] == "@":
            return self._named()
        return self._term()

    def _group(self) -> Node:
        opened = self.at
        self.enter()
        self.skip(1)
        found = self._either()
        if self._ended:
            self.refuse("'(' is not closed", at=opened)
        self.skip(1)
        self.depth -= 1
        return found

    def _named(self) -> Node:
        begin = self.at
        name = self.take(_PLAIN)[1:]
        self.skip()
        text = self._saved.get(name)
        if text is None:
            hint = did_you_mean(f"@{name}", [f"@{other}" for other in self._saved])
            self.refuse(f"no filter is saved as {name!r}", begin, hint=hint or _NO_NAMES)
        if name in self._within or len(self._within) >= MAX_DEPTH:
            self.refuse(f"@{name} is saved as a filter of itself", at=begin)
        origin = f"in @{name}, {text!r}: "
        try:
            found = _Parser(text, self._saved, (*self._within, name)).tree()
        except TextError as error:
            self.refuse(origin + error.problem, begin, hint=error.hint)
        if found is None:
            self.refuse(f"@{name} is empty", at=begin)
        return _moved(found, begin + 1, origin)

    def _term(self) -> Term | Not:
        begin = self.at
        field, operator = self._field()
        values = [self._value(field)]
        while self.text.startswith(",", self.at):
            self.at += 1
            values.append(self._value(field))
        text = self.text[begin : self.at]
        after = self.text[self.at : self.at + 1]
        if after and not (after.isspace() or after in "()"):
            self.refuse(f"a space is missing after {text!r}")
        self.skip()
        same = "=" if operator in ("==", "!=") else operator
        term = Term(field, same, tuple(values), text, begin + 1)
        return Not(term, begin + 1, within=True) if operator == "!=" else term

    def _field(self) -> tuple[str, str]:
        """The field and the operator of a term; empty and `:` for a bare word."""
        found = _FIELD.match(self.text, self.at)
        if found is None or (found[2] and _is_address(_PLAIN.match(self.text, self.at))):
            return "", ":"
        self.at = found.end()
        return found[1], found[2] or found[3]

    def _value(self, field: str) -> Value:
        column = self.at + 1
        sign = self.text[self.at : self.at + 1]
        if (quoted := _QUOTED.get(sign)) is None:
            if not (word := self.take(_PLAIN)):
                self.refuse(f"{field}: has no value" if field else "a value is missing")
            return Value(word, column, "word")
        found = quoted.match(self.text, self.at)
        if found is None:
            what = "pattern" if sign == "/" else "quotation"
            self.refuse(f"this {what} has no end", hint=f"a {sign} ends it")
        self.at = found.end()
        if sign == "/":
            return Value(found[1], column, "pattern")
        return Value(re.sub(r"\\(.)", r"\1", found[1]), column, "quoted")

    @property
    def _ended(self) -> bool:
        return self.at == len(self.text)

    def _word(self) -> str:
        """The next word if it is `and`, `or` or `not`; else empty."""
        found = _JOINED.match(self.text, self.at)
        return found[1] if found else ""

    def _take(self, word: str) -> bool:
        if self._word() != word:
            return False
        self.skip(len(word))
        return True


def _joined(word: str, parts: Sequence[Node], column: int) -> Node:
    """Join nodes, and merge parts that the same word joins."""
    if len(parts) == 1:
        return parts[0]
    same = (
        part.of if isinstance(part, Joined) and part.word == word else (part,) for part in parts
    )
    return Joined(word, tuple(chain.from_iterable(same)), column)


def _is_address(found: re.Match[str] | None) -> bool:
    """Whether a word with a colon is an IPv6 address or prefix."""
    if found is None or found[0].count(":") < 2:
        return False
    try:
        ipaddress.IPv6Network(found[0], strict=False)
    except ValueError:
        return False
    return True


def _moved(node: Node, column: int, origin: str) -> Node:
    """The tree with one column for all: the place of a saved filter's name."""
    if isinstance(node, Not):
        return replace(node, of=_moved(node.of, column, origin), column=column)
    if isinstance(node, Joined):
        of = tuple(_moved(part, column, origin) for part in node.of)
        return replace(node, of=of, column=column)
    values = tuple(replace(value, column=column, whole=True) for value in node.values)
    return replace(node, values=values, column=column, origin=origin + node.origin)
