"""Names of keys: Textual's for bindings, and others for the user."""

from __future__ import annotations

import unicodedata
from string import punctuation

from bpf.errors import UsageError, did_you_mean

_RENAMED = {
    "solidus": "slash", "reverse_solidus": "backslash", "commercial_at": "at",
    "hyphen_minus": "minus", "plus_sign": "plus", "low_line": "underscore",
}  # fmt: skip
"""Textual's names of characters, by Unicode's names."""
_MODIFIERS = ("alt", "ctrl", "hyper", "meta", "shift", "super")
"""In the order of Textual's key names."""
_NAMED = (
    "enter", "escape", "tab", "space", "backspace", "delete", "insert", "home", "end", "pageup",
    "pagedown", "up", "down", "left", "right", *(f"f{number}" for number in range(1, 25)),
)  # fmt: skip
SENT_AS = {
    "ctrl+i": "tab", "ctrl+m": "enter", "ctrl+h": "backspace",
    "ctrl+left_square_bracket": "escape", "ctrl+shift+i": "tab", "ctrl+shift+m": "enter",
}  # fmt: skip
"""Keys that a terminal sends as other keys."""
_SPOKEN = {
    "escape": "esc", "pageup": "pgup", "pagedown": "pgdn", "up": "↑", "down": "↓", "left": "←",
    "right": "→",
}  # fmt: skip


def _name_of(character: str) -> str:
    """Return the name of a sign. Raises ValueError if it has none."""
    name = unicodedata.name(character).lower().replace("-", "_").replace(" ", "_")
    return _RENAMED.get(name, name)


CHARACTERS = {_name_of(character): character for character in punctuation} | {"space": " "}
"""Characters by the longer names of their keys."""
NAMES = {character: name for name, character in CHARACTERS.items()}


def key_name(text: str) -> str:
    """Return Textual's name, `slash` for `/`. Raises UsageError if no terminal sends the key."""
    # The key itself may be a plus.
    *modifiers, key = text[:-1].split("+") if len(text) > 1 else [""]
    key += text[-1:]
    if len(key) == 1 and not key.isalnum() and key.isprintable():
        key = NAMES.get(key) or _name_of(key)
    known = (len(key) == 1 and key.isalnum()) or key in CHARACTERS or key in _NAMED
    wrong = [modifier for modifier in modifiers if modifier not in _MODIFIERS]
    if wrong or not (known or (len(text) == 1 and text.isprintable())):
        hint = "such as f5, ctrl+x, slash, pageup or a letter"
        near = did_you_mean(key.lower(), (*_NAMED, *CHARACTERS), hint)
        near = did_you_mean(wrong[0], _MODIFIERS) if wrong else near
        raise UsageError(f"there is no key {text!r}", hint=near)
    name = "+".join((*sorted(set(modifiers)), key))
    if len(key) == 1 and modifiers:
        plain = key.lower()
        if modifiers == ["shift"]:
            raise UsageError(f"no terminal sends {text!r}", hint=f"write {key.upper()}")
        if key != plain:
            others = "+".join(sorted({*modifiers, "shift"}))
            raise UsageError(f"no terminal sends {text!r}", hint=f"write {others}+{plain}")
    if name in SENT_AS:
        raise UsageError(f"terminals send {text!r} as {SENT_AS[name]}", hint="choose another key")
    return name


def strokes(text: str) -> tuple[str, ...]:
    """Return the keys of `2/dport:443<enter>`: signs, and names in brackets. Raises UsageError."""
    found = []
    at = 0
    while at < len(text):
        end = text.find(">", at) if text[at] == "<" else at
        if end < 0:
            raise UsageError(f"{text[at:]!r} has no end", hint="names of keys stand in <...>")
        found.append(key_name(text[at + 1 : end] if end > at else text[at]))
        at = end + 1
    return tuple(found)


def spoken(keys: str) -> str:
    """Return keys, separated by commas, in the user's words."""
    names = []
    for key in filter(None, keys.split(",")):
        *modifiers, last = key.split("+")
        name = last if last == "space" else CHARACTERS.get(last, last)
        names.append("+".join((*modifiers, _SPOKEN.get(name, name))))
    return ", ".join(names)
