"""The verifier's log, folded to the path to the refused instruction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_PLACE = re.compile(r"^; .*@ (?P<file>[^\s:]+):(?P<line>\d+)$")
_INSTRUCTION = re.compile(r"^\d+: \((?P<code>[0-9a-f]{2})\) (?P<text>[^;]*)")
_STATE = re.compile(r"^(\d+: R\d|from \d+ to )")
_START = "0: R1=ctx"
_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_REGISTER = re.compile(rf"\b(R\d+)(?:_\w+)?=((?:[^\s(]|{_NESTED})+)")
_OPERAND = re.compile(r"\b[rw](\d+)\b")
_RESULT = re.compile(r"^[rw]\d+ = ")
_CALL = "85"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal: its reason, and the path to it."""

    path: tuple[tuple[str, int], ...]
    """File and line of each source line on the path, the refused one last."""
    instruction: str
    """The refused instruction; empty if the log names none."""
    registers: Mapping[str, str]
    """State of the registers that it uses."""
    reason: tuple[str, ...]
    """The verifier's words."""


def fold(log: str) -> Refusal:
    """Return the refusal of a log; of several programs' logs, the last one's.

    At log level 1 the kernel drops verified branches: the log is the path to the refused
    instruction.
    """
    path: list[tuple[str, int]] = []
    known: dict[str, str] = {}
    place: tuple[str, int] | None = None
    instruction = code = ""
    reason: list[str] = []
    for row in log.splitlines():
        if row.startswith(_START):
            path.clear()
            known.clear()
        if found := _PLACE.match(row):
            # Line 0 is an instruction of the compiler's own.
            place = (found["file"], int(found["line"])) if found["line"] != "0" else place
        elif found := _INSTRUCTION.match(row):
            instruction, code = found["text"].strip(), found["code"]
            if place is not None and path[-1:] != [place]:
                path.append(place)
            known.update(_REGISTER.findall(row))
            reason.clear()
        elif _STATE.match(row):
            known.update(_REGISTER.findall(row))
        elif row.strip() and not row.startswith(("processed ", ";")):
            reason.append(row.strip())
    numbers = {int(number) for number in _OPERAND.findall(_RESULT.sub("", instruction))}
    if code == _CALL:
        numbers = {1, 2, 3, 4, 5}
    used = {name: known[name] for n in sorted(numbers) if (name := f"R{n}") in known}
    return Refusal(tuple(path), instruction, used, tuple(reason))
