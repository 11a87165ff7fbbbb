"""Fields of text, and tests of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bpf.errors import TextError
from probes.filter.fields.field import EQUAL, Test, Value
from probes.filter.pattern import searcher
from probes.filter.table import Array, RowTable


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
class Texts:
    """A column of text that contains a value."""

    column: str
    help: str
    examples: tuple[str, ...] = ()

    @property
    def words(self) -> Mapping[str, str]:
        return dict.fromkeys(self.examples, "")

    def test(self, operator: str, value: Value) -> Test:
        if operator not in EQUAL:
            raise value.wrong(f"{operator} is for numbers", "write : instead")
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


def _text(text: object) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else str(text)
