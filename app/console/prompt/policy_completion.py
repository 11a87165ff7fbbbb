"""Completion of policies in their short form: names, metrics, units, keywords, and filters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from app.commands.complete import Completion, fitting
from app.console.prompt import filter_completion
from bpf.quantities import TIMES
from probes.filter import Domain
from probes.filter.table import RowTable
from probes.flow.filter import WINDOW_FLOWS
from probes.monitor.condition import terms
from probes.monitor.condition.syntax import METRICS
from probes.monitor.condition.units import SUFFIXES
from probes.monitor.owners.text import OWNERS
from probes.monitor.policy.model import BUILT_IN, TRACE
from probes.monitor.policy.names import TOP_FLOWS
from probes.monitor.policy.short_form import WORDS

_SELECTED = Domain(
    WINDOW_FLOWS.rows,
    {**WINDOW_FLOWS.fields, **OWNERS.fields},
    WINDOW_FLOWS.bare,
    WINDOW_FLOWS.text,
)
"""Flows, or owners: a selection has terms of one of them."""
_FUNCTIONS = tuple(f"{name}(" for name in ("rate", *terms.FUNCTIONS))
_JOINING = ("and", "or", "not", "on", "until", "hold", "cooldown", "suspects", "->")
_AFTER_RUN = re.compile(r".*?\son\s+(?:.*\sor\s+)?", re.DOTALL)
_LAST_FILTER = re.compile(r".*(?:(?<=[\w(])\s+on\s+|\bsuspects\s+)", re.DOTALL)
_OUTSIDE = re.compile(r"[<>]=?\s|[-+*/]\s|\b(?:and|until|hold|cooldown)\b")
"""Signs that a filter within a condition is over."""
_NUMBER = re.compile(r".*?((?<![\w.:])[0-9.]+)([A-Za-z%/]*)", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_@][\w:]*|-?>?", re.DOTALL)
_UNITS = [name for name in SUFFIXES if name and name not in TIMES]
_RATES = [f"{name}/s" for name in _UNITS if name != "%" and not name.endswith("bps")]


def complete(
    text: str, position: int, ready: Iterable[str], applications: Iterable[str],
    table: RowTable | None = None, saved: Iterable[str] = (),
) -> Completion:  # fmt: skip
    """Return the candidates at a cursor: names of `ready` policies, parts of a condition, names of
    `applications` after the arrow, and terms of filters with values of the flows in `table`."""
    typed = text[:position]
    condition, arrow, run = typed.partition("->")
    name, colon, condition = condition.partition(":")
    if not colon:
        return _fitting(typed, position, ready)
    begin = len(name) + 1
    if arrow:
        begin += len(condition) + len(arrow)
        if (filtered := _AFTER_RUN.match(run)) is not None:
            return _filter(run[filtered.end() :], position, table, saved)
        word = re.split(r"[,\s]", run)[-1]
        before = run[: len(run) - len(word)].rstrip()
        if before and not before.endswith(","):
            return _fitting(word, position, ("on",))
        return _fitting(word, position, [*BUILT_IN, *applications, f"{TRACE}:{TOP_FLOWS}"])
    filtered = _LAST_FILTER.match(condition)
    if filtered is not None and not _OUTSIDE.search(condition, filtered.end()):
        return _filter(condition[filtered.end() :], position, table, saved)
    number = _NUMBER.fullmatch(condition)
    if number is not None:
        time = re.search(r"(hold|cooldown|,)\s*[0-9.]+\w*$", condition) is not None
        units = TIMES if time else [*_UNITS, *_RATES]
        return _fitting(number[2], position, units)
    word = re.split(r"[\s()<>=!*/+,]", condition)[-1]
    if not condition[: len(condition) - len(word)].strip():
        return _fitting(word, position, [*METRICS, *_FUNCTIONS, *WORDS])
    return _fitting(word, position, [*_JOINING, *METRICS, *_FUNCTIONS])


def _fitting(typed: str, position: int, known: Iterable[str]) -> Completion:
    found = dict.fromkeys(word for word in fitting(typed, known) if word != typed)
    return Completion(position - len(typed), tuple(found))


def _filter(typed: str, position: int, table: RowTable | None, saved: Iterable[str]) -> Completion:
    found = filter_completion.complete(typed, len(typed), _SELECTED, table, saved)
    return Completion(position - len(typed) + found.begin, found.candidates)
