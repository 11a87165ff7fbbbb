"""Filters of owners: `process:nginx`, `unit:web.service user:www-data`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from bpf.errors import placed
from probes.filter import Domain, Filter, parse
from probes.filter.domain import NONE
from probes.filter.owners import OWNER_FIELDS
from probes.filter.syntax import tree

_NAMES = ("proc", "process", "pid", "user", "unit", "container", "pod")
OWNERS = Domain("owners", {name: OWNER_FIELDS[name] for name in _NAMES})
"""Rows of dtype OWNER, with the columns `process` and `pid`."""


def owner_filter(text: str, saved: Mapping[str, str] = NONE) -> Filter | None:
    """Return a filter of owners; None if the text has no field of owners, so is of packets.

    Raises TextError if it has fields of both, and for mistakes.
    """
    with placed(text):
        root = tree(text, saved)
    if root is None or not any(term.field.lower() in OWNERS.fields for term in root.terms()):
        return None
    return parse(text, OWNERS, saved)


@lru_cache(maxsize=256)
def stored_filter(text: str) -> Filter | None:
    """Return the filter of a checked text, see `owner_filter`."""
    return owner_filter(text)


def is_of_owners(text: str) -> bool:
    """Whether a checked text selects owners, not packets."""
    return bool(text) and stored_filter(text) is not None
