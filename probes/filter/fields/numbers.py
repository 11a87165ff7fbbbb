"""The base of all fields; fields of counts, rates, shares and times, with units, and of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, Protocol

import numpy as np

from bpf.arrays import Array
from bpf.errors import TextError
from bpf.quantities import TIMES_NS, quantity
from probes.filter.conjunction import Conjunction
from probes.filter.pattern import searcher
from probes.filter.table import RowTable


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a term."""

    text: str
    column: int
    kind: Literal["word", "pattern", "quoted"]
    whole: bool = False
    """Whether mistakes have the column of the whole value: it is in a saved filter."""

    def wrong(self, problem: str, hint: str = "", at: int = 0) -> TextError:
        """A mistake in the value, from character `at` on."""
        return TextError(problem, "", self.column + (0 if self.whole else at), hint=hint)


@dataclass(frozen=True, slots=True)
class Test:
    """One value of a term, as a test of rows, of packets in C, and as sets."""

    mask: Callable[[RowTable], Array]
    """From a table of n rows to bool (n,)."""
    c: str = ""
    """An expression over `struct packet *p`; empty if the kernel lacks the field."""
    within: tuple[Conjunction, ...] = ()
    """Alternatives of the packet's parts; empty if a packet lacks the field."""


EQUAL = (":", "=")
"""Operators without an order; they differ for TCP flags only."""


class Field(Protocol):
    """A field of rows."""

    @property
    def help(self) -> str: ...

    @property
    def words(self) -> Mapping[str, str]:
        """Possible values or examples, with their meaning."""

    def test(self, operator: str, value: Value) -> Test:
        """Return the test for a value. Raises TextError."""


def plain(operator: str, value: Value) -> str:
    """The text of a value that is neither compared nor a pattern. Raises TextError."""
    if operator not in EQUAL:
        raise value.wrong(f"{operator} is for numbers", "write : instead")
    if value.kind == "pattern":
        raise value.wrong("a pattern is for texts, hosts and addresses")
    return value.text


@dataclass(frozen=True, slots=True)
class Quantity:
    """A column of numbers."""

    column: str
    help: str
    units: Mapping[str, float]
    """Units that may follow a number, in the column's own unit."""
    usual: float = 1.0
    """Unit of a number without one."""
    most: float = np.inf
    """Largest value, in the column's own unit."""

    @property
    def words(self) -> Mapping[str, str]:
        return dict.fromkeys((f"1{unit}" for unit in self.units), "")

    def test(self, operator: str, value: Value) -> Test:
        if value.kind != "word":
            raise value.wrong(f"{value.text!r} is not a number")
        if operator in EQUAL:
            said, dash, end = value.text.partition("-")
            low = self._number(value, said)
            high = self._number(value, end, len(said) + 1) if dash else low
            if not low <= high:
                raise value.wrong("the range is empty: it ends before it begins")
            return Test(lambda t: (t[self.column] >= low) & (t[self.column] <= high))
        compare, number = _COMPARE[operator], self._number(value, value.text)
        return Test(lambda table: compare(table[self.column], number))

    def _number(self, value: Value, said: str, at: int = 0) -> float:
        try:
            number = quantity(said, self.units, self.usual)
        except TextError as error:
            raise value.wrong(error.problem, error.hint, at + error.column - 1) from None
        if not number <= self.most:
            raise value.wrong(f"{said!r} is larger than the field can be", "", at)
        return number


_COMPARE: dict[str, Callable[[Array, float], Array]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


def times(column: str, help_text: str, usual: str, *, column_ns: float = 1.0) -> Quantity:
    """A column of times in units of `column_ns`; a number without a unit is in `usual`."""
    units = {name: ns / column_ns for name, ns in TIMES_NS.items()}
    return Quantity(column, help_text, units, units[usual])


def passing(value: Value) -> Callable[[str], bool]:
    """Return a test whether a text contains a value, ignoring case. Raises TextError."""
    if value.kind == "pattern":
        try:
            return searcher(value.text)
        except TextError as error:
            raise value.wrong(error.problem, error.hint, error.column) from None
    wanted = value.text.casefold()
    return lambda text: wanted in text.casefold()


@dataclass(frozen=True, slots=True)
class _Named:
    """A column of texts, which have no order."""

    column: str
    help: str
    examples: tuple[str, ...] = ()

    @property
    def words(self) -> Mapping[str, str]:
        return dict.fromkeys(self.examples, "")

    def test(self, operator: str, value: Value) -> Test:
        if operator not in EQUAL:
            raise value.wrong(f"{operator} is for numbers", "write : instead")
        return self._test(value)

    def _test(self, value: Value) -> Test:
        raise NotImplementedError


class Texts(_Named):
    """A column of text that contains a value."""

    __slots__ = ()

    def _test(self, value: Value) -> Test:
        passes = passing(value)

        def mask(table: RowTable) -> Array:
            if (coded := table.coded.get(self.column)) is not None:
                # Many rows share a text: test each text once.
                found = coded()
                few = np.fromiter(map(passes, found.texts), bool, len(found.texts))
                return np.asarray(few[found.codes])
            texts = table[self.column]
            return np.fromiter((passes(_text(text)) for text in texts.tolist()), bool, len(texts))

        return Test(mask)


class InterfaceNames(_Named):
    """A column of short names in bytes: a value is a name, or a pattern such as `eth*`."""

    __slots__ = ()

    def _test(self, value: Value) -> Test:
        wanted = value.text
        if value.kind != "pattern" and not set(wanted) & set("*?["):
            return Test(lambda table: table[self.column] == wanted.encode())
        passes = passing(value) if value.kind == "pattern" else partial(fnmatchcase, pat=wanted)

        def mask(table: RowTable) -> Array:
            names, of = np.unique(table[self.column], return_inverse=True)
            few = [passes(_text(name)) for name in names.tolist()]
            return np.array(few, bool)[of]

        return Test(mask)


def _text(text: object) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
