"""Columns of owners as ranks for the order of a table, and as texts for files."""

from __future__ import annotations

import numpy as np

from app.console.screens.flows.table import LiveTable
from probes.flow.records import Array
from probes.sockets.records import By, Limit

_WORDS = {
    "limit": ("limit", tuple(one.label for one in Limit)),
    "owner_by": ("by", tuple(one.label for one in By)),
}
"""Columns of codes: the column of the table, and the codes' words."""


def text_ranks(table: LiveTable, name: str) -> Array:
    """Return the ranks (n,) of the texts of all flows, without regard to case; empty ones last."""
    if name not in table.coded:
        return table[_WORDS[name][0] if name in _WORDS else name]
    coded = table.coded[name]()
    order = sorted(range(len(coded.texts)), key=lambda at: _sorting(coded.texts[at]))
    ranks = np.empty(len(order), "i8")
    ranks[order] = np.arange(len(order))
    return np.asarray(ranks[coded.codes])


def _sorting(text: str) -> tuple[bool, str]:
    return not text, text.casefold()


def code_texts(table: LiveTable, name: str, places: Array) -> list[str]:
    """Return the texts (m,) of the flows at `places` (m,)."""
    if name in table.coded:
        coded = table.coded[name]()
        return [coded.texts[code] for code in coded.codes[places].tolist()]
    if name in _WORDS:
        column, words = _WORDS[name]
        return [words[code] for code in table[column][places].tolist()]
    return [str(number or "") for number in table[name][places].tolist()]
