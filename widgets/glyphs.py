"""Translation of cells to ASCII, for terminals without other characters.

Widgets draw with any characters. For an ASCII terminal each cell is translated on its way out,
including Textual's own borders and the names of hosts.
"""

from __future__ import annotations

from functools import lru_cache

from rich.cells import split_graphemes

# ruff: noqa: RUF001
_ASCII = {
    **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*%#", strict=True)),
    **dict(zip("▏▎▍▋▊▉", ".:-+*%", strict=True)),
    **dict(zip("▓▒░▀▔", "&o'--", strict=True)),
    **dict(zip("◆●○•·…×✕✓", "**oo.~xx+", strict=True)),
    **dict(zip("▲▼▶◀▸▾◄►←↑→↓≤≥≈−–—", "^v><>v<><^>v<>~---", strict=True)),
    **dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789", strict=True)),
    **dict(zip("‘’“”«»‹›⏎↵µ±√", "''\"\"<><><<u++", strict=True)),
}
_ASCII |= dict.fromkeys("─━═╌╍┄┅┈┉╴╶╸╺", "-") | dict.fromkeys("│┃║▌▐▕╵╷", "|")
_BRAILLE = " ..:::###"
"""Braille signs by their number of dots."""


@lru_cache(maxsize=4096)
def ascii_of(text: str) -> str:
    """Return `text` in ASCII, in as many cells; `?` replaces characters without likeness."""
    if text.isascii():
        return text
    parts = ((text[start:end], cells) for start, end, cells in split_graphemes(text)[0])
    return "".join(_likeness(part, cells) for part, cells in parts)


def _likeness(grapheme: str, cells: int) -> str:
    if grapheme.isascii():
        return grapheme
    if grapheme in _ASCII:
        return _ASCII[grapheme]
    code = ord(grapheme[0])
    if 0x2800 <= code <= 0x28FF:
        return _BRAILLE[(code - 0x2800).bit_count()]
    if 0x2500 <= code <= 0x259F:  # corners and crossings
        return "+"
    return "?" * cells
