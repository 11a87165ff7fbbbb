"""Filters in conditions: where they end, and their canonical text.

`packets on proto:udp dport:53 > 5`: a filter ends before a comparison, before `+ - * /` at the
begin of a word, before `and`, `or`, `)`, and before a `,` that a space or a time follows. In
parentheses or quotation marks, a filter has all of its language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bpf.errors import TextError
from probes.flow.filter import FlowFilter
from probes.monitor.owners.text import owner_filter

_STOP = re.compile(r"[<>)]|==|!=|=[<>]|,(?=\s|(?:[0-9.]+(?:[num]?s|[mhd]))+\s*[,)]|\Z)")
_STOP_WORD = re.compile(r"[-+*/]|(?:and|or)(?![^\s()])")
_WHOLE = re.compile(r"\"([^\"]*)\"|'([^']*)'")
# A slash behind `::` is of a prefix, such as fc00::/7.
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|(?<!::)(?<=[:,])/(?:[^/\\]|\\.)*/')


def read(text: str, at: int) -> tuple[str, int, int]:
    """Return the filter in `text` from `at` on, its start, and the index behind it."""
    at += len(text[at:]) - len(text[at:].lstrip())
    if whole := _WHOLE.match(text, at):
        return whole[1] or whole[2] or "", at + 1, whole.end()
    begin, depth = at, 0
    while at < len(text):
        begins_word = at == begin or text[at - 1].isspace()
        if not depth and (_STOP.match(text, at) or (begins_word and _STOP_WORD.match(text, at))):
            break
        if quoted := _QUOTED.match(text, at):
            at = quoted.end()
            continue
        depth += (text[at] == "(") - (text[at] == ")")
        at += 1
    return text[begin:at].rstrip(), begin, at


def written(selection: str) -> str:
    """Return a canonical filter as conditions write it: in parentheses unless it is one term."""
    one_word = not any(c.isspace() for c in selection) and not selection.startswith(("/", "-"))
    return selection if one_word and read(selection, 0)[0] == selection else f"({selection})"


def canonical(text: str, saved: Mapping[str, str]) -> str:
    """Return the canonical text of a filter of packets or of owners. Raises TextError if it is
    malformed, or can't select packets."""
    if owners := owner_filter(text, saved):
        return owners.canonical
    found = FlowFilter.parse(text, saved)
    if not found.conjunctions():
        raise TextError("it passes no packet", text, 1)
    return found.canonical
