"""Names of keys in tapes: `Enter`, `Ctrl+P`, `Key "f13"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from app.commands.keys import CHARACTERS, key_name
from bpf.errors import UsageError, did_you_mean

VERBS: Mapping[str, str] = {
    name: name.lower()
    for name in (
        "Enter", "Tab", "Up", "Down", "Left", "Right", "Escape", "Space", "Backspace", "Delete",
        "Insert", "Home", "End", "PageUp", "PageDown", *(f"F{number}" for number in range(1, 13)),
    )
}  # fmt: skip
"""The console's names of keys that are verbs."""
MODIFIERS = ("Ctrl", "Alt", "Shift")
_VERB_OF = {key: verb for verb, key in VERBS.items()}


def held(modifiers: Sequence[str], key: str) -> str:
    """Return the console's name of a tape's key. Raises UsageError if no terminal sends it."""
    if len(key) != 1 and key not in VERBS:
        hint = did_you_mean(key, VERBS, "such as P, Left or F5")
        raise UsageError(f"there is no key {key!r}", hint=hint)
    if len(key) == 1 and list(modifiers) == ["Shift"]:
        return key_name(key.upper())
    base = VERBS.get(key, key.lower())
    return key_name("+".join([*map(str.lower, dict.fromkeys(modifiers)), base]))


def character_of(key: str) -> str | None:
    """Return the character that a key types; None for other keys."""
    return key if len(key) == 1 else CHARACTERS.get(key)


def spelled(key: str) -> str:
    """Return the line that presses a key of the console: `Ctrl+P`, `Enter`, `Key "f13"`."""
    *modifiers, base = key.split("+")
    last = _VERB_OF.get(base) or CHARACTERS.get(base, base)
    words = [name for name in MODIFIERS if name.lower() in modifiers]
    if not modifiers and key in _VERB_OF:
        return last
    with suppress(UsageError):
        if modifiers and held(words, last) == key:
            return "+".join([*words, last.upper() if len(last) == 1 else last])
    return f'Key "{key}"'
