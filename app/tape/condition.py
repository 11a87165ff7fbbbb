"""Comparisons of named state: `program.state == "ready"`, `rate > 10Mbit/s`, `path.rtt < 50ms`.

The console's own states are here. The states of a screen stand in its folder.
"""

from __future__ import annotations

import math
import operator
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from app.console.screens import SCREENS
from app.tape.line import TapeLine
from app.tape.named_state import NamedState, StateKind, StateValue
from bpf.errors import ProbedeckError, did_you_mean, placed
from bpf.quantities import BIT_RATES, COUNTS, SHARES, TIMES, quantity

if TYPE_CHECKING:
    from probes.snapshot import Event

_T, _F, _C = StateKind.TEXT, StateKind.FLAG, StateKind.COUNT


def states() -> dict[str, NamedState]:
    own = (
        NamedState("view", _T, "screen in front", tuple(SCREENS)),
        NamedState("paused", _F, "whether the view is frozen"),
        NamedState("busy", _F, "whether a command still runs"),
        NamedState("read_only", _F, "whether changes are refused"),
        NamedState("theme", _T, "colors", ("dark", "light")),
        NamedState("width", _C, "columns of the screen"),
        NamedState("height", _C, "lines of the screen"),
        NamedState("message", _T, "last message in the corner"),
        NamedState("windows", _C, "measured windows"),
        NamedState("generation", _C, "generation of the program that measured the last window"),
        NamedState("rate", StateKind.RATE, "rate of all flows together"),
        NamedState("lost", _C, "packets, or results of probes, lost since the start"),
        NamedState("prompt", _T, "command that asks for a value; empty: none"),
        NamedState("prompt.text", _T, "text of that line"),
        NamedState("macro.playing", _T, "tape that plays; empty: none"),
        NamedState("macro.recording", _T, "register of the recording; empty: none"),
    )
    of_screens = (state for screen in SCREENS.values() for state in screen.states)
    return {state.name: state for state in (*own, *of_screens)}


def known(name: str) -> NamedState | None:
    for state in states().values():
        if state.name.endswith(".") and name.startswith(state.name) and name != state.name:
            return replace(state, name=name)
    return None if name.endswith(".") else states().get(name)


def nearest(name: str) -> str:
    names = [f"{each}NAME" if each.endswith(".") else each for each in states()]
    return did_you_mean(name, names, "probedeck tape states lists all")


_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_EQUAL: Mapping[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "!=": operator.ne}
COMPARED = {**_EQUAL, **_ORDER}
_MATCH = {"=~": True, "!~": False}
"""Whether the pattern must occur."""
_NAME = re.compile(r"[^\s=!<>~]+")
_OPERATOR = re.compile(r"[=!<>~]+")
_SIGN = re.compile(r"-?")
_NUMBER = re.compile(r"[^\s#]*")
UNITS: Mapping[StateKind, Mapping[str, float]] = {
    StateKind.COUNT: COUNTS, StateKind.RATE: BIT_RATES, StateKind.TIME: TIMES,
    StateKind.SHARE: SHARES,
}  # fmt: skip
"""Units of numbers by kind."""

LONGEST = 1.0
"""Seconds of the longest search: `(a+)+b` may take years, and blocks even signals."""


@dataclass(frozen=True, slots=True)
class StateCondition:
    """A named state and the value that it is compared with."""

    state: str
    operator: str
    value: str | float | bool | re.Pattern[str]
    text: str
    """The condition as written."""

    def holds(self, actual: StateValue) -> bool:
        """Compare the state; if there is none, only `!=` and `!~` hold. Raises ProbedeckError."""
        if actual is None:
            return self.operator.startswith("!")
        if isinstance(self.value, re.Pattern):
            return found(self.value, str(actual)) is _MATCH[self.operator]
        if self.operator in _EQUAL and isinstance(self.value, float):
            # Shares and times are computed: their last digits mean nothing.
            return math.isclose(float(actual), self.value, rel_tol=1e-9) is (self.operator == "==")
        return COMPARED[self.operator](actual, self.value)


@dataclass(frozen=True, slots=True)
class EventPattern:
    """Events that cause steps."""

    policy: str = ""
    pattern: re.Pattern[str] | None = None
    """None: the policy fires."""

    def matches(self, event: Event) -> bool:
        """Raises ProbedeckError for a search that takes too long."""
        if self.pattern is not None:
            return found(self.pattern, f"{event.source} {event.subject} {event.text}")
        return event.subject == f"policy {self.policy}" and event.phase == "begin"


def found(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the text has the pattern. Main thread only. Raises ProbedeckError if it is slow."""
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LONGEST)
    try:
        return pattern.search(text) is not None
    except TimeoutError:
        problem = f"the search took more than {LONGEST:g} s"
        raise ProbedeckError(problem, hint="the expression can match in too many ways") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(*_: object) -> NoReturn:
    raise TimeoutError


def shown(actual: StateValue) -> str:
    if actual is None:
        return "not known"
    if isinstance(actual, bool):
        return str(actual).lower()
    return f'"{actual}"' if isinstance(actual, str) else f"{actual:.6g}"


def read_condition(line: TapeLine) -> StateCondition:
    """The condition that begins here, to its end. Raises TextError."""
    begin = line.at
    name = line.take(_NAME)
    if not name:
        line.refuse("a named state is missing", hint='such as program.state == "ready"')
    if (named := known(name)) is None:
        line.refuse(f"there is no state {name!r}", begin, hint=nearest(name))
    line.skip()
    at = line.at
    sign = line.take(_OPERATOR)
    order = {StateKind.TEXT: _MATCH, StateKind.FLAG: ()}.get(named.kind, _ORDER)
    usual = (*_EQUAL, *order)
    if sign not in usual:
        problem = f"{name} is not compared by {sign}" if sign else "a comparison is missing"
        line.refuse(problem, at, hint=f"{name} is {named.kind}: {' '.join(usual)}")
    line.skip()
    if line.over:
        line.refuse(f"{name} {sign} needs a value", hint=f"such as {_example(named, sign)}")
    value = _value(line, named, sign)
    return StateCondition(name, sign, value, line.text[begin : line.at])


def _value(line: TapeLine, named: NamedState, sign: str) -> str | float | bool | re.Pattern[str]:
    begin = line.at
    if sign in _MATCH:
        return line.pattern()
    if named.kind is StateKind.TEXT:
        if not line.quote_ahead:
            problem = f"{named.name} is text, and compared with text in quotes"
            line.refuse(problem, hint=f"such as {_example(named, sign)}")
        text = line.string()
        if named.choices and text not in named.choices:
            problem = f"{named.name} is never {text!r}"
            line.refuse(problem, begin, hint=did_you_mean(text, named.choices))
        return text
    if named.kind is StateKind.FLAG:
        word = line.word()
        if word not in ("true", "false"):
            line.refuse(f"{named.name} is true or false, not {word!r}", begin)
        return word == "true"
    minus, begin = line.take(_SIGN), line.at
    with placed(line.text, begin):
        return (-1 if minus else 1) * quantity(line.take(_NUMBER), UNITS[named.kind])


def _example(named: NamedState, sign: str) -> str:
    if sign in _MATCH:
        return f"{named.name} {sign} /text/"
    values = {
        StateKind.TEXT: f'"{named.choices[0] if named.choices else "text"}"',
        StateKind.FLAG: "true", StateKind.COUNT: "3", StateKind.RATE: "10Mbit/s",
        StateKind.TIME: "50ms", StateKind.SHARE: "5%",
    }  # fmt: skip
    return f"{named.name} {sign} {values[named.kind]}"
