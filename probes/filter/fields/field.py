"""The base of all fields: values of terms, and their tests of rows and packets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from bpf.arrays import Array
from bpf.errors import TextError
from probes.filter.conjunction import Conjunction
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
