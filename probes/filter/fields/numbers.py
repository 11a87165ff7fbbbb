"""Fields of counts, rates, shares and times, with their units."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from probes.filter.fields.field import EQUAL, Test, Value
from probes.filter.table import Array

_NUMBER = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]?.*)", re.ASCII | re.DOTALL)


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
        found = _NUMBER.fullmatch(said)
        if found is None:
            raise value.wrong(f"{said!r} is not a number", self._hint(), at)
        unit, at_unit = found[2], at + len(found[1])
        alike = [name for name in self.units if name.lower() == unit.lower()]
        if not unit:
            scale = self.usual
        elif unit in self.units or len(alike) == 1:
            scale = self.units[unit if unit in self.units else alike[0]]
        else:
            raise value.wrong(f"{unit!r} is no unit here", self._hint(), at_unit)
        number = float(found[1]) * scale
        if not number <= self.most:
            raise value.wrong(f"{said!r} is larger than the field can be", self._hint(), at)
        return number

    def _hint(self) -> str:
        return f"units are {', '.join(self.units)}" if self.units else ""


_COMPARE: dict[str, Callable[[Array, float], Array]] = {
    "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip
_DECIMAL = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
PLAIN = {**_DECIMAL, **_BINARY}
_ONE = {"": 1.0, **PLAIN}
SIZES = {f"{p}B": n for p, n in _ONE.items()} | PLAIN
BIT_RATES = (
    {f"{p}bit": n for p, n in _ONE.items()}
    | {f"{p}bit/s": n for p, n in _ONE.items()}
    | {f"{p}bps": n for p, n in _ONE.items()}
    | {f"{p}B/s": 8 * n for p, n in _ONE.items()}
    | PLAIN
)
RATES = {**PLAIN, "/s": 1.0, **{f"{p}/s": n for p, n in PLAIN.items()}}
_TIMES = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86400e9}
SHARES = {"%": 0.01}


def times(column: str, help_text: str, usual: str, *, column_ns: float = 1.0) -> Quantity:
    """A column of times in units of `column_ns`; a number without a unit is in `usual`."""
    units = {name: ns / column_ns for name, ns in _TIMES.items()}
    return Quantity(column, help_text, units, units[usual])
