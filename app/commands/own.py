"""Own commands: a program and its arguments, with fields of a row in braces.

No shell reads them. A template is split into words first, and a field is put into its word later:
whatever it contains, it stays in that word.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from string import Formatter

from bpf.errors import UsageError, did_you_mean

MARK = "!"
"""Begins an own command in settings and in the prompt."""
FIELDS = (
    "source", "destination", "source_port", "destination_port", "local", "remote", "local_port",
    "remote_port", "protocol", "port", "address", "name", "network", "hop", "text", "policy",
    "application", "probe", "side", "map",
)  # fmt: skip


def words_of(template: str) -> list[str]:
    """Split a template into words. Raises UsageError for an unknown field."""
    try:
        words = shlex.split(template)
    except ValueError as error:
        raise UsageError(f"{template!r}: {str(error).lower()}") from None
    if not words or not words[0]:
        raise UsageError("a program is missing", hint="such as !ss -tinp dst {destination}")
    for place, word in enumerate(words):
        for field in (field for _, field in _parts(word) if field is not None):
            if not place:
                # Else a name that packets tell could choose the program.
                raise UsageError("a field cannot name the program", hint="fields are arguments")
            if field not in FIELDS:
                known = f"there are {', '.join(FIELDS)}; a brace itself is written twice: {{{{"
                hint = did_you_mean(field, FIELDS, known)
                raise UsageError(f"there is no field {field!r}", hint=hint)
    return words


def filled(words: Sequence[str], row: Mapping[str, str]) -> list[str]:
    """Return words with the fields of a row. Raises UsageError if the row lacks a field."""
    return [_filled(word, row) for word in words]


def _filled(word: str, row: Mapping[str, str]) -> str:
    text = ""
    for plain, field in _parts(word):
        text += plain
        if field is None:
            continue
        value = row.get(field, "")
        if not value:
            known = f"it has {', '.join(row)}" if row else "choose a row"
            raise UsageError(f"this row has no {field}", hint=known)
        if not text and value.startswith("-"):
            # Names come from the network, and programs would read an option.
            raise UsageError(f"the {field} {value!r} would be an option", hint="write -- before it")
        if not value.isprintable():
            raise UsageError(f"the {field} has control characters")
        text += value
    return text


def _parts(word: str) -> list[tuple[str, str | None]]:
    """Return pieces of a word, each with the field behind it. Raises UsageError for a single
    brace."""
    try:
        found = list(Formatter().parse(word))
    except ValueError:
        hint = "a brace itself is written twice: {{"
        raise UsageError(f"{word!r} has a single brace", hint=hint) from None
    parts = []
    for plain, field, form, how in found:
        # A form or a conversion makes it an unknown field.
        more = (f"!{how}" if how else "") + (f":{form}" if form else "")
        parts.append((plain, field if field is None else field + more))
    return parts
