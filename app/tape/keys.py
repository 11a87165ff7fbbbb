"""Keys as tapes name them: `Enter`, `Ctrl+P`, `Key "f13"`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.commands.keys import CHARACTERS, key_name
from bpf.errors import UsageError, did_you_mean

VERBS: Mapping[str, str] = {
    name: name.lower()
    for name in (
        "Enter", "Tab", "Up", "Down", "Left", "Right", "Escape", "Space", "Backspace", "Delete",
        "Insert", "Home", "End", "PageUp", "PageDown", *(f"F{number}" for number in range(1, 13)),
    )
}  # fmt: skip
"""Keys that are verbs, and what the console calls them."""
MODIFIERS = ("Ctrl", "Alt", "Shift")
_VERB_OF = {key: verb for verb, key in VERBS.items()}


def held(modifiers: Sequence[str], key: str) -> str:
    """The console's name of a key that is pressed while others are held, by their names in a tape.

    Raises UsageError for what is no key, or is sent by no terminal.
    """
    if len(key) != 1 and key not in VERBS:
        near = did_you_mean(key, VERBS)
        # What there is would be a long list.
        hint = near if near.startswith("did you") else "such as P, Left or F5"
        raise UsageError(f"there is no key {key!r}", hint=hint)
    if len(key) == 1 and list(modifiers) == ["Shift"]:
        return key_name(key.upper())
    base = VERBS.get(key, key.lower())
    return key_name("+".join([*map(str.lower, dict.fromkeys(modifiers)), base]))


def character_of(key: str) -> str | None:
    """What a key writes; None where it writes nothing."""
    return key if len(key) == 1 else CHARACTERS.get(key)


def spelled(key: str) -> str:
    """The line that presses a key, by the console's name: `Ctrl+P`, `Enter`, `Key "f13"`."""
    *modifiers, base = key.split("+")
    last = _VERB_OF.get(base) or CHARACTERS.get(base, base)
    words = [name for name in MODIFIERS if name.lower() in modifiers]
    try:
        if not modifiers and key in _VERB_OF:
            return last
        if modifiers and held(words, last) == key:
            return "+".join([*words, last.upper() if len(last) == 1 else last])
    except UsageError:
        pass
    return f'Key "{key}"'
