"""Completion of filters: fields, and values of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from probes.filter.domain import NONE, Domain
from probes.filter.fields import Addresses, Field, Ports, Quantity
from probes.filter.network import address_text
from probes.filter.table import Array, RowTable

_TERM = re.compile(r"([A-Za-z_]\w*)(:|<=|>=|!=|==|[<>=])(.*)", re.DOTALL)
_NUMBER = re.compile(r"([0-9.]+)[A-Za-z/%]*")
_LOOKED_AT = 1000
"""Rows whose values are counted."""
_OFFERED = 8
"""Values that are offered, the most frequent ones."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may replace the line from `start` to the cursor."""

    text: str
    help: str
    start: int
    """Index of the first replaced character."""


def complete(
    text: str, position: int, domain: Domain, table: RowTable | None = None,
    saved: Mapping[str, str] = NONE,
) -> list[Candidate]:  # fmt: skip
    """Return the candidates at a cursor: fields of `domain`, values of the rows in `table`, and
    names of `saved` filters. Within a pattern or a quotation there are none."""
    begin = _begin(text[:position])
    if begin is None:
        return []
    typed = text[begin:position]
    if (found := _TERM.fullmatch(typed)) is not None:
        field = domain.fields.get(found[1].lower())
        last = found[3].rpartition(",")[2]
        known = _values(field, last, table) if field is not None else {}
        start = position - len(last)
    else:
        start, known = begin, dict(_words(domain, saved))
        last = typed
    fitting = (word for word in known if word.lower().startswith(last.lower()) and word != last)
    return [Candidate(word, known[word], start) for word in fitting]


def _begin(typed: str) -> int | None:
    """Return the index at which the last term begins; None within a pattern or a quotation."""
    begin, open_by = 0, ""
    for place, character in enumerate(typed):
        before = typed[place - 1] if place > begin else ":"
        if open_by:
            open_by = "" if character == open_by and before != "\\" else open_by
        elif character.isspace() or character in "()" or (character == "!" and place == begin):
            begin = place + 1
        elif character in '/"' and before in ":,=":
            open_by = character
    return None if open_by else begin


def _words(domain: Domain, saved: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The beginnings of a term, and their meanings."""
    for name, field in domain.fields.items():
        yield name + (">" if isinstance(field, Quantity) else ":"), field.help
    for name in domain.bare:
        yield from ((word, "") for word in domain.fields[name].words if word.isalpha())
    yield from ((f"@{name}", text) for name, text in saved.items())
    yield "or", "one of two is enough"


def _values(field: Field, typed: str, table: RowTable | None) -> Mapping[str, str]:
    if isinstance(field, Quantity):
        number = _NUMBER.fullmatch(typed)
        return {number[1] + unit: "" for unit in field.units} if number else {}
    if table is not None and len(table):
        if isinstance(field, Ports):
            ports = [table[f"{end}_port"][:_LOOKED_AT] for end in field.ends]
            values, counts = np.unique(np.concatenate(ports), return_counts=True)
            return {str(port): "" for port in _most(values, counts) if port}
        if isinstance(field, Addresses):
            return dict.fromkeys(_addresses(field, table), "")
    return field.words


def _addresses(field: Addresses, table: RowTable) -> Iterator[str]:
    versions = np.tile(table["version"][:_LOOKED_AT], len(field.ends))
    raw = np.concatenate([table[end][:_LOOKED_AT] for end in field.ends])
    both = np.column_stack((versions, raw))
    values, counts = np.unique(both, axis=0, return_counts=True)
    for row in values[np.argsort(-counts, kind="stable")[:_OFFERED]]:
        yield address_text(row[1:].tobytes(), int(row[0]))


def _most(values: Array, counts: Array) -> list[int]:
    found: list[int] = values[np.argsort(-counts, kind="stable")[:_OFFERED]].tolist()
    return found
