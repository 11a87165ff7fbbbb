"""A source whose mark says where its error stands."""

from __future__ import annotations


def marked(text: str) -> tuple[str, int, int]:
    """`text` without its mark `@`, and where that was."""
    before, after = text.split("@")
    return before + after, before.count("\n") + 1, len(before) - before.rfind("\n")
