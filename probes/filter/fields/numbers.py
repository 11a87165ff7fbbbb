"""Fields of counts, rates, shares and times, with their units."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bpf.errors import TextError
from bpf.quantities import TIMES_NS, quantity
from probes.filter.fields.field import EQUAL, Test, Value
from probes.filter.table import Array


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
