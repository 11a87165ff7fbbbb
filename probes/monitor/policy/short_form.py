"""A policy in one line:

    NAME: CONDITION [until CONDITION] [hold 5s] [cooldown 10s] [suspects ROWS]
        -> RUN[, RUN...] [on FILTER [or ...]]

`always` instead of the condition is the permanent mode; `operator` the mode that only an operator
activates (S2.12). RUN is an application, a profile, `trace:N`: the paths of the N top flows, an
action (`probes.monitor.actions.action`), or a capture (`probes.monitor.actions.capture`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Self

from bpf.errors import TextError, UsageError
from probes.config.config_errors import ConfigFault
from probes.config.positions import Keys
from probes.monitor.actions.action import DRY
from probes.monitor.actions.action import WORDS as ACTIONS
from probes.monitor.actions.capture import CAPTURE

FORM = (
    "a policy is NAME: CONDITION -> RUN, or NAME: CONDITION hold 5s cooldown 10s -> RUN on FILTER"
)
WORDS = {"always": "permanent", "operator": "operator"}
"""Words instead of a condition, and their modes."""
_CLAUSE = re.compile(r"(?<!\S)(until|hold|cooldown|suspects)(?!\S)")
_LATE = re.compile(r"(?<![,\s])\s+(until|hold|cooldown|suspects)(?!\S)")
"""A clause behind the applications or their filter; after a comma it is a name."""
_CLAUSES = {"until": "deactivate"}
"""Keys of clauses, if they differ from the word."""
_RUN = (
    rf"(?:(?:{'|'.join((DRY, *ACTIONS, CAPTURE))})(?=[\s,]|$)(?:\s+(?!on(?:\s|$))[^\s,]+)*|[^\s,]+)"
)
_THEN = re.compile(rf"\s*({_RUN}(?:\s*,\s*{_RUN})*)(?:\s+on\s+(\S.*?))?\s*", re.DOTALL)
_COMMA, _OR = re.compile(r"\s*,\s*"), re.compile(r"\s+or\s+")


class ShortForm:
    """A text in the short form: the data of a policy, and where each value begins."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.data: dict[str, Any] = {}
        self._begins: dict[Keys, int] = {}
        self._where = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """Split a text into its parts. Raises TextError for anything else."""
        form = cls(text)
        form._split()
        return form

    def error(self, fault: ConfigFault) -> UsageError:
        """Return a fault as an error with its column in the text."""
        at = self._begins.get(fault.keys, self._begins.get(fault.keys[:1], len(self.text)))
        said = f"{self._where}: {fault.said}"
        return TextError(said, self.text, at + max(fault.column, 1), hint=fault.hint)

    def _split(self) -> None:
        head, arrow, then = self.text.partition("->")
        name, colon, when = head.partition(":")
        if not (colon and arrow):
            missing = "->" if colon else ":"
            problem = f"policy {self.text.strip()[:40]!r} has no {missing!r}"
            raise TextError(problem, self.text, len(self.text.rstrip()) + 1, hint=FORM)
        self._where = f"policy {name.strip()[:40]!r}"
        self._put(("name",), name, 0)
        self._split_when(when, len(name) + 1)
        begin = len(head) + 2
        if late := _LATE.search(then):
            problem = f"{late[1]} stands before '->'"
            raise self._wrong(problem, begin + late.start(1), FORM)
        found = _THEN.fullmatch(then)
        if not found:
            problem = f"{then.strip()[:40]!r} after '->' is not understood"
            raise self._wrong(
                problem, begin + _blanks(then), "say RUN, or RUN, RUN on FILTER or FILTER"
            )
        self._put_list("run", _parts(found[1], _COMMA), begin + found.start(1))
        if found[2]:
            self._put_list("select", _parts(found[2], _OR), begin + found.start(2))

    def _split_when(self, when: str, begin: int) -> None:
        words = [*_CLAUSE.finditer(when)]
        ends = [*(word.start() for word in words), len(when)]
        condition = when[: ends[0]]
        self._put(("condition",), condition, begin)
        if mode := WORDS.get(condition.strip()):
            self.data["condition"] = ""
            self.data["mode"] = mode
        else:
            self.data["mode"] = "triggered"
        for word, end in zip(words, ends[1:], strict=True):
            key = _CLAUSES.get(word[1], word[1])
            if key in self.data:
                raise self._wrong(f"{word[1]} is given twice", begin + word.start())
            value = when[word.end() : end]
            if not value.strip():
                raise self._wrong(f"nothing follows {word[1]}", begin + word.end(), FORM)
            self._put((key,), value, begin + word.end())

    def _put(self, keys: Keys, value: str, begin: int) -> None:
        self.data[str(keys[0])] = value.strip()
        self._begins[keys] = begin + _blanks(value)

    def _put_list(self, key: str, values: Iterator[tuple[int, str]], begin: int) -> None:
        self._begins[(key,)] = begin
        found = []
        for number, (at, value) in enumerate(values):
            self._begins[key, number] = begin + at
            found.append(value)
        self.data[key] = tuple(found)

    def _wrong(self, problem: str, at: int, hint: str = "") -> TextError:
        return TextError(f"{self._where}: {problem}", self.text, at + 1, hint=hint)


def _blanks(text: str) -> int:
    """Blanks before the first word."""
    return len(text) - len(text.lstrip()) if text.strip() else 0


def _parts(text: str, separator: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the offset and text of each part between separators that no parentheses enclose."""
    begin = 0
    for found in separator.finditer(text):
        before = text[begin : found.start()]
        if before.count("(") <= before.count(")"):
            yield begin, before
            begin = found.end()
    yield begin, text[begin:]
