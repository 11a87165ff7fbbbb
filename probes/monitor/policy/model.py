"""Operator's policies of the monitor: which condition runs which applications.

Files, REST and the console use the same model. The short form is one line:

    NAME: CONDITION [until CONDITION] [hold 5s] [cooldown 10s] [suspects ROWS]
        -> RUN[, RUN...] [on FILTER [or ...]]

`always` instead of the condition is the permanent mode; `operator` the mode that only an operator
activates (S2.12). RUN is an application, a profile, or `trace:N`: the paths of the N top flows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)

from bpf.errors import TextError, UsageError
from probes.config.config_errors import config_error, invalid
from probes.config.map_config import Name, Text
from probes.filter import parse
from probes.flow.filter import WINDOW_FLOWS, FlowFilter
from probes.monitor.condition import Condition, ConditionError
from probes.monitor.condition.units import TIMES
from probes.monitor.selected import SelectedMetric

Mode = Literal["triggered", "permanent", "operator"]
BUILT_IN = ("accounting", "dns", "half_open", "heavy_hitters", "port_scan")
"""Applications that come with the monitor."""
TRACE = "trace"
MAX_TRACED = 16
MAX_SECONDS = 86400
"""Longest hold or cool-down: a day."""
FORM = (
    "a policy is NAME: CONDITION -> RUN, or NAME: CONDITION hold 5s cooldown 10s -> RUN on FILTER"
)
_WORDS: dict[str, Mode] = {"always": "permanent", "operator": "operator"}
"""Words instead of a condition."""
_UNITS = {"": 1.0} | TIMES
_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?)\s*({'|'.join(_UNITS)})")
_CLAUSE = re.compile(r"(?<!\S)(until|hold|cooldown|suspects)(?!\S)")
_CLAUSES = {
    "until": "deactivate", "hold": "hold", "cooldown": "cooldown", "suspects": "suspects",
}  # fmt: skip
_THEN = re.compile(r"\s*([^\s,]+(?:\s*,\s*[^\s,]+)*)(?:\s+on\s+(\S.*?))?\s*", re.DOTALL)


def _seconds(value: object) -> object:
    """Seconds of a number, or of a text with a unit."""
    if not isinstance(value, str):
        return value
    if not (found := _DURATION.fullmatch(value.strip())):
        raise invalid(f"{value[:40]!a} is no duration", hint="such as 5s, 500ms or 2m")
    return float(found[1]) * _UNITS[found[2]]


def _traced(value: object, name: Callable[[object], str]) -> str:
    """Check `trace:N`, or else a name."""
    what, colon, count = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or what != TRACE:
        return name(value)
    if not (count.isascii() and count.isdecimal() and 1 <= int(count) <= MAX_TRACED):
        raise invalid(f"{count[:40]!a} is not a number of flows, 1 to {MAX_TRACED}")
    return f"{TRACE}:{int(count)}"


def some(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names; refuse none."""
    if not names:
        raise invalid("must not be empty")
    return names


def _filters(text: str) -> tuple[str, ...]:
    """Filters that `or` joins, one by one; within parentheses it belongs to a filter."""
    return (text,) if "(" in text else tuple(re.split(r"\s+or\s+", text))


def _filter(text: str) -> str:
    if not text.strip():
        raise invalid("must not be empty", hint="leave select out for every packet")
    try:
        conjunctions = FlowFilter.parse(text).conjunctions()
    except TextError as error:
        raise invalid(f"column {error.column}: {error.problem}", hint=error.hint) from None
    if not conjunctions:
        raise invalid(f"{text[:40]!a} passes no packet")
    return " ".join(text.split())


def _suspects(text: str) -> str:
    try:
        parse(text, WINDOW_FLOWS)
    except TextError as error:
        raise invalid(f"column {error.column}: {error.problem}", hint=error.hint) from None
    return " ".join(text.split())


Seconds = Annotated[
    float,
    BeforeValidator(_seconds, json_schema_input_type=float | str),
    Field(ge=0, le=MAX_SECONDS),
]
Select = Annotated[Text, AfterValidator(_filter)]
Run = Annotated[Name, WrapValidator(_traced, json_schema_input_type=str)]
"""Name of an application or of a profile, `trace`, or `trace:N`."""


class PolicyModel(BaseModel):
    """A table of a file of policies."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Policy(PolicyModel):
    """When which applications get which packets."""

    name: Name
    mode: Mode = "operator"
    """`triggered` if only a condition is given. An operator can also activate a triggered
    policy."""
    condition: Text = ""
    """A triggered policy becomes active when this holds (`probes.monitor.condition`)."""
    deactivate: Text = ""
    """The policy ends when this holds (hysteresis); empty: when `condition` does not hold."""
    hold: Seconds = 0.0
    """Minimum time of activity: a number of seconds, or text such as `500ms`."""
    cooldown: Seconds = 0.0
    """Time after the end before the condition is evaluated again."""
    select: tuple[Select, ...] = ()
    """Filters (`probes.flow.filter`); a packet must pass one of them. Empty: every packet."""
    suspects: Annotated[Text, AfterValidator(_suspects)] = ""
    """Filter of the flows that a finding summarises, such as `flags=S packets<=3`. Empty: `select`,
    else the selection of the deciding comparison, else all flows."""
    run: Annotated[tuple[Run, ...], AfterValidator(some)]

    @model_validator(mode="before")
    @classmethod
    def _has_mode(cls, data: Any) -> Any:
        if isinstance(data, dict) and "mode" not in data and data.get("condition"):
            return {**data, "mode": "triggered"}
        return data

    @field_validator("condition", "deactivate")
    @classmethod
    def _is_condition(cls, text: str) -> str:
        try:
            if text.strip():
                Condition.parse(text)
        except ConditionError as error:
            raise invalid(f"column {error.column}: {error.problem}", hint=error.hint) from None
        return " ".join(text.split())

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.mode == "triggered" and not self.condition:
            raise invalid("it is missing", at="condition", hint="mode triggered needs one")
        if self.mode != "triggered":
            for key in ("condition", "deactivate", "hold", "cooldown"):
                if getattr(self, key):
                    raise invalid(f"mode {self.mode} has none", at=key, hint="triggered has")
        return self

    @classmethod
    def parse(cls, data: object, where: str) -> Policy:
        """Check a policy of JSON's types. Raises UsageError with `where` and the key."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise config_error(error, cls, where) from None

    @classmethod
    def parse_short(cls, text: str) -> Policy:
        """Parse the short form. Raises UsageError with the policy's name and the key."""
        head, arrow, then = text.partition("->")
        name, colon, when = head.partition(":")
        if not (colon and arrow):
            missing = "->" if colon else ":"
            raise UsageError(f"policy {text.strip()[:40]!a} has no {missing!r}", hint=FORM)
        where = f"policy {name.strip()[:40]!a}"
        found = _THEN.fullmatch(then)
        if not found:
            shown = f"{where}: {then.strip()[:40]!a} after '->' is not understood"
            raise UsageError(shown, hint="say RUN, or RUN, RUN on FILTER or FILTER")
        condition, *clauses = (part.strip() for part in _CLAUSE.split(when))
        mode = _WORDS.get(condition, "triggered")
        data: dict[str, object] = {
            "name": name.strip(),
            "mode": mode,
            "condition": condition if mode == "triggered" else "",
            "run": tuple(re.split(r"\s*,\s*", found[1])),
            "select": _filters(found[2]) if found[2] else (),
        }
        for word, value in zip(clauses[::2], clauses[1::2], strict=True):
            key = _CLAUSES[word]
            if key in data:
                raise UsageError(f"{where}: {word} is given twice")
            if not value:
                raise UsageError(f"{where}: nothing follows {word}", hint=FORM)
            data[key] = value
        return cls.parse(data, where)

    @property
    def metrics(self) -> frozenset[SelectedMetric]:
        """Metrics of selections that its conditions need."""
        texts = filter(None, (self.condition, self.deactivate))
        return frozenset(metric for text in texts for metric in Condition.parse(text).metrics)

    @property
    def when(self) -> str:
        """The condition, or the word instead of one."""
        words = {mode: word for word, mode in _WORDS.items()}
        return words.get(self.mode, self.condition)

    def to_short(self) -> str:
        """The short form: `parse_short` reads it back."""
        when = [self.when]
        if self.deactivate:
            when.append(f"until {self.deactivate}")
        when += [
            f"{key} {np.format_float_positional(seconds, trim='-')}s"
            for key, seconds in (("hold", self.hold), ("cooldown", self.cooldown))
            if seconds
        ]
        if self.suspects:
            when.append(f"suspects {self.suspects}")
        then = [", ".join(self.run)]
        if self.select:
            then.append(f"on {' or '.join(self.select)}")
        return f"{self.name}: {' '.join(when)} -> {' '.join(then)}"

    def dump(self) -> dict[str, Any]:
        """The policy in JSON's types, without defaults: `parse` reads it back."""
        return self.model_dump(mode="json", exclude_defaults=True)
