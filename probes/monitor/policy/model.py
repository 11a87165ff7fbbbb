"""Operator's policies of the monitor: which condition runs which applications.

Files, REST and the console use the same model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    WrapValidator,
    field_validator,
    model_validator,
)

from bpf.errors import TextError
from bpf.quantities import TIMES, quantity
from probes.config.config_errors import (
    ConfigFault,
    config_error,
    errors_of,
    faults_of,
    invalid,
    validated,
)
from probes.config.map_config import Name, Text
from probes.filter import parse
from probes.filter.domain import NONE
from probes.flow.filter import WINDOW_FLOWS, FlowFilter
from probes.monitor.actions.action import CULPRIT, PacketAction, action_of, is_action
from probes.monitor.actions.capture import (
    CaptureRequest,
    capture_of,
    is_capture,
    is_of_packets,
)
from probes.monitor.condition import Condition
from probes.monitor.condition.syntax import MAX_STORED
from probes.monitor.owners.text import is_of_owners, owner_filter
from probes.monitor.policy.short_form import WORDS, ShortForm
from probes.monitor.selected import SelectedMetric

Mode = Literal["triggered", "permanent", "operator"]
BUILT_IN = ("accounting", "dns", "half_open", "heavy_hitters", "port_scan", "tcp_health")
"""Applications that come with the monitor."""
TRACE = "trace"
MAX_TRACED = 16
MAX_SECONDS = 86400
"""Longest hold or cool-down: a day."""
_NAMES = re.compile(r"@([^\s,()]+)")


@contextmanager
def _parsing() -> Iterator[None]:
    """Raise a mistake in a text as one of its field."""
    try:
        yield
    except TextError as error:
        raise invalid(error.problem, hint=error.hint, column=error.column) from None


def _seconds(value: object) -> object:
    """Seconds of a number, or of a text with a unit."""
    if not isinstance(value, str):
        return value
    with _parsing():
        return quantity(value, TIMES)


def _run(value: object, name: Callable[[object], str]) -> str:
    """Check `trace:N`, an action or a capture, or else a name."""
    if isinstance(value, str) and is_of_packets(value):
        with _parsing():
            (CaptureRequest if is_capture(value) else PacketAction).parse(value)
        return " ".join(value.split())
    what, colon, count = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not colon or what != TRACE:
        return name(value)
    if not (count.isascii() and count.isdecimal() and 1 <= int(count) <= MAX_TRACED):
        raise invalid(f"{count[:40]!r} is not a number of flows, 1 to {MAX_TRACED}")
    return f"{TRACE}:{int(count)}"


def some(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names; refuse none."""
    if not names:
        raise invalid("must not be empty")
    return names


def _filter(text: str, info: ValidationInfo) -> str:
    if not text.strip():
        raise invalid("must not be empty", hint="leave select out for every packet")
    saved = info.context or NONE
    with _parsing():
        if owners := owner_filter(text, saved):
            return _without_names(text, owners.canonical)
        found = FlowFilter.parse(text, saved)
        conjunctions = found.conjunctions()
    if not conjunctions:
        raise invalid(f"{text[:40]!r} passes no packet")
    return _without_names(text, found.canonical)


def _suspects(text: str, info: ValidationInfo) -> str:
    with _parsing():
        found = parse(text, WINDOW_FLOWS, info.context or NONE)
    return _without_names(text, found.canonical)


def _without_names(text: str, canonical: str) -> str:
    """Return the stored form of a text: the canonical one if it has names."""
    return canonical if "@" in text else " ".join(text.split())


Seconds = Annotated[
    float,
    BeforeValidator(_seconds, json_schema_input_type=float | str),
    Field(ge=0, le=MAX_SECONDS),
]
Select = Annotated[Text, AfterValidator(_filter)]
Run = Annotated[Name, WrapValidator(_run, json_schema_input_type=str)]
"""Name of an application or of a profile, `trace`, `trace:N`, an action, or a capture."""


class PolicyModel(BaseModel):
    """A table of a file of policies."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _contradictions(data: Mapping[str, Any]) -> Iterator[ConfigFault]:
    mode = data.get("mode", "operator")
    if mode == "triggered" and not data.get("condition"):
        yield ConfigFault(("condition",), "it is missing", "mode triggered needs one")
    if mode in ("permanent", "operator"):
        for key in ("condition", "deactivate", "hold", "cooldown"):
            if data.get(key):
                yield ConfigFault((key,), f"mode {mode} has none", "triggered has")
    run, select = (_texts(data.get(key)) for key in ("run", "select"))
    actions, captures = (
        [at for at, text in enumerate(run) if is_one(text)] for is_one in (is_action, is_capture)
    )
    for places, what in ((actions, "action"), (captures, "capture")):
        for at in places[1:]:
            yield ConfigFault(("run", at), f"a policy has one {what}", "add another policy")
    for at in captures[:1]:
        if mode == "permanent":
            yield ConfigFault(
                ("run", at), "a capture needs a begin", "give a condition, or operator"
            )
        if mode == "operator" and CULPRIT in run[at].split():
            yield ConfigFault(("run", at), "a culprit needs a condition", "it makes them one")
    is_of_culprit = any(CULPRIT in run[at].split() for at in actions)
    if is_of_culprit and mode != "triggered":
        yield ConfigFault(("run", actions[0]), "a culprit needs a condition", "it makes them one")
    if actions and not is_of_culprit and not any(text.strip() for text in select):
        hint = "add: on FILTER, such as on udp dport:53"
        yield ConfigFault(("run", actions[0]), "an action needs its packets", hint)
    for at, text in enumerate(select if actions or captures else ()):
        with suppress(TextError):
            if is_of_owners(text):
                what = "an action" if actions else "a capture"
                hint = "name their addresses or ports"
                yield ConfigFault(("select", at), f"{what} takes no owners", hint)


def _texts(given: object) -> Sequence[str]:
    """Return the texts of a list that is not checked yet."""
    return (
        [each if isinstance(each, str) else "" for each in given]
        if isinstance(given, list | tuple)
        else ()
    )


class Policy(PolicyModel):
    """When which applications get which packets.

    The context of its validation are the named filters of its file. Its texts have the filters
    instead of the names.
    """

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
    """Filters of packets (`probes.flow.filter`) or of owners (`probes.monitor.owners`); a packet
    must pass one of them, or belong to such an owner. Empty: every packet."""
    suspects: Annotated[Text, AfterValidator(_suspects)] = ""
    """Filter of the flows that a finding summarises, such as `flags=S packets<=3`. Empty: `select`,
    else the selection of the deciding comparison, else all flows."""
    run: Annotated[tuple[Run, ...], AfterValidator(some)]
    filters: tuple[tuple[Text, Text], ...] = ()
    """Named filters of its file that it uses: the text and the name of each. Conditions are shown
    with the names."""
    trusted: tuple[Text, ...] = ()
    """Networks whose packets do not count. The monitor sets its own."""

    @model_validator(mode="wrap")
    @classmethod
    def _fits_together(
        cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Add what does not fit together to the mistakes of the keys."""
        faults: list[ConfigFault] = []
        if isinstance(data, dict):
            if "mode" not in data and data.get("condition"):
                data = {**data, "mode": "triggered"}
            if info.context:
                named = {*_NAMES.findall(f"{data.get('condition')} {data.get('deactivate')}")}
                used = [(text, name) for name, text in info.context.items() if name in named]
                data = {**data, **({"filters": used} if used else {})}
            # A misspelled key may be the one that is missing.
            if data.keys() <= cls.model_fields.keys():
                faults = list(_contradictions(data))
        return validated(cls, handler, data, faults)

    @field_validator("condition", "deactivate")
    @classmethod
    def _is_condition(cls, text: str, info: ValidationInfo) -> str:
        if not text.strip():
            return ""
        with _parsing():
            if info.context is None:  # It may be the text of a stored policy.
                found = Condition.stored(text)
            else:
                found = Condition.parse(text, saved=info.context)
        stored = _without_names(text, found.text)
        if len(stored) > MAX_STORED:
            raise invalid(f"it is longer than {MAX_STORED} characters with its named filters")
        return stored

    @classmethod
    def parse(cls, data: object, where: str) -> Policy:
        """Check a policy of JSON's types. Raises UsageError with `where` and the key."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise config_error(error, cls, where) from None

    @classmethod
    def parse_short(cls, text: str) -> Policy:
        """Parse the short form. Raises UsageError with all mistakes, each with its column."""
        form = ShortForm.of(text)
        try:
            return cls.model_validate(form.data)
        except ValidationError as error:
            raise errors_of(faults_of(error, cls), form) from None

    @property
    def metrics(self) -> frozenset[SelectedMetric]:
        """Metrics of selections that its conditions need."""
        conditions = filter(None, map(self.parsed, (self.condition, self.deactivate)))
        return frozenset(metric for each in conditions for metric in each.metrics)

    def parsed(self, text: str) -> Condition | None:
        """Return the condition of a text of this policy; None if the text is empty."""
        return Condition.stored(text, self.filters, self.trusted) if text else None

    @property
    def terms(self) -> frozenset[SelectedMetric]:
        """All metrics that the conditions name, with and without a selection."""
        found = map(self.parsed, (self.condition, self.deactivate))
        return frozenset().union(*(each.named for each in found if each))

    @property
    def selected(self) -> tuple[str, ...]:
        """As `select`, without the packets of trusted networks."""
        return self.without_trusted(self.select or ("",))

    def without_trusted(self, filters: Sequence[str], end: str = "src") -> tuple[str, ...]:
        """Add to filters of packets that this end is no trusted host; empty: every packet."""
        if not self.trusted:
            return tuple(filter(None, filters))
        others = f"!{end}:{','.join(self.trusted)}"
        return tuple(
            text if is_of_owners(text) else f"({text}) {others}" if text else others
            for text in filters
        )

    @property
    def action(self) -> PacketAction | None:
        """The action on the selected packets."""
        return action_of(self.run)

    @property
    def capture(self) -> CaptureRequest | None:
        """The capture that it has written when it becomes active."""
        return capture_of(self.run)

    @property
    def knows_owners(self) -> bool:
        """Whether it needs the socket probe."""
        return any(map(is_of_owners, self.select)) or any(m.of_owners for m in self.metrics)

    @property
    def when(self) -> str:
        """The condition with the names of filters, or the word instead of one."""
        words = {mode: word for word, mode in WORDS.items()}
        return words.get(self.mode, self.named(self.condition))

    def named(self, text: str) -> str:
        """Return the text of a condition with the names of filters."""
        found = self.parsed(text) if self.filters else None
        return found.text if found else text

    def to_short(self) -> str:
        """The short form: `parse_short` reads it back."""
        when = [self.condition or self.when]
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
