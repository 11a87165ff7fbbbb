"""Completion of filters: fields, and values of the rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import numpy as np

from app.commands.complete import Completion, fitting
from bpf.arrays import Array
from probes.filter.domain import Domain
from probes.filter.fields import Addresses, Field, Ports, Quantity, Texts
from probes.filter.hosts import address_text
from probes.filter.table import RowTable

_TERM = re.compile(r"([A-Za-z_]\w*)(:|<=|>=|!=|==|[<>=])(.*)", re.DOTALL)
_NUMBER = re.compile(r"([0-9.]+)[A-Za-z/%]*")
_PLAIN = re.compile(r'[^\s,()/"][^\s,()]*')
_LOOKED_AT = 1000
"""Rows whose values are counted."""
_OFFERED = 8
"""Values that are offered, the most frequent ones."""


def complete(
    text: str, position: int, domain: Domain, table: RowTable | None = None,
    saved: Iterable[str] = (),
) -> Completion:  # fmt: skip
    """Return the candidates at a cursor: fields of `domain`, values of the rows in `table`, and
    names of `saved` filters. Within a pattern or a quotation there are none."""
    begin = _begin(text[:position])
    if begin is None:
        return Completion(position, ())
    typed = text[begin:position]
    known: Iterable[str]
    if (found := _TERM.fullmatch(typed)) is not None:
        field = domain.fields.get(found[1].lower())
        typed = found[3].rpartition(",")[2]
        known = _values(field, typed, table) if field is not None else ()
    else:
        known = _words(domain, saved)
    words = dict.fromkeys(word for word in fitting(typed, known) if word != typed)
    return Completion(position - len(typed), tuple(words))


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


def _words(domain: Domain, saved: Iterable[str]) -> Iterator[str]:
    """Yield the beginnings of a term."""
    for name, field in domain.fields.items():
        yield name + (">" if isinstance(field, Quantity) else ":")
    for name in domain.bare:
        yield from filter(str.isalpha, domain.fields[name].words)
    yield from (f"@{name}" for name in saved)
    yield "or"


def _values(field: Field, typed: str, table: RowTable | None) -> Iterable[str]:
    if isinstance(field, Quantity):
        number = _NUMBER.fullmatch(typed)
        return [number[1] + unit for unit in field.units] if number else ()
    if table is not None and len(table):
        if isinstance(field, Ports):
            ports = [table[f"{end}_port"][:_LOOKED_AT] for end in field.ends]
            return [str(port) for port in _most(np.concatenate(ports)) if port]
        if isinstance(field, Addresses):
            versions = np.tile(table["version"][:_LOOKED_AT], len(field.ends))
            raw = np.concatenate([table[end][:_LOOKED_AT] for end in field.ends])
            rows = _most(np.column_stack((versions, raw)))
            return [address_text(row[1:].tobytes(), int(row[0])) for row in rows]
        if isinstance(field, Texts) and (coded := table.coded.get(field.column)) is not None:
            found = coded()
            texts = [found.texts[code] for code in _most(found.codes)]
            return dict.fromkeys(_quoted(text) for text in texts if text)
    return field.words


def _quoted(text: str) -> str:
    """Return a text as the value of a term."""
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _most(values: Array) -> Array:
    """Return the most frequent values or rows."""
    found, counts = np.unique(values, axis=0, return_counts=True)
    return found[np.argsort(-counts, kind="stable")[:_OFFERED]]
