"""Operator's policies of the monitor: which condition runs which applications.

Files, REST and the console use the same model. The short form is one line:

    NAME: CONDITION [until CONDITION] [hold 5s] [cooldown 10s] -> RUN[, RUN...] [on FILTER [or ...]]

`always` instead of the condition is the permanent mode; `operator` the mode that only an operator
activates (S2.12). RUN is an application, a profile, or `trace:N`: the paths of the N top flows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)

from bpf.errors import TextError, UsageError, did_you_mean
from probes.config import model as config
from probes.config.config_errors import config_error, invalid
from probes.config.files import read_data
from probes.config.map_config import Name, Text
from probes.config.model import MAX_FILE, ProbeConfig
from probes.flow.filter import FlowFilter
from probes.monitor.condition import Condition, ConditionError
from probes.monitor.condition.units import TIMES
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.selected import SelectedMetric
from probes.monitor.state import MAX_POLICIES
from probes.path.options import Guard, Guarded, Order, PathOptions, Per

Mode = Literal["triggered", "permanent", "operator"]
BUILT_IN = ("accounting", "dns", "half_open", "heavy_hitters", "port_scan")
"""Applications that come with the monitor."""
TRACE = "trace"
TOP_FLOWS = 3
"""Flows that `trace` traces without a number."""
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
_CLAUSE = re.compile(r"(?<!\S)(until|hold|cooldown)(?!\S)")
_CLAUSES = {"until": "deactivate", "hold": "hold", "cooldown": "cooldown"}
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


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise invalid("must not be empty")
    return names


def _filter(text: str) -> str:
    if not text.strip():
        raise invalid("must not be empty", hint="leave select out for every packet")
    try:
        matches = FlowFilter.parse(text).matches()
    except TextError as error:
        raise invalid(f"column {error.column}: {error.problem}", hint=error.hint) from None
    if not matches:
        raise invalid(f"{text[:40]!a} passes no packet")
    return " ".join(text.split())


Seconds = Annotated[
    float,
    BeforeValidator(_seconds, json_schema_input_type=float | str),
    Field(ge=0, le=MAX_SECONDS),
]
Select = Annotated[Text, AfterValidator(_filter)]
Run = Annotated[Name, WrapValidator(_traced, json_schema_input_type=str)]
"""Name of an application or of a profile, `trace`, or `trace:N`."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Policy(_Model):
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
    run: Annotated[tuple[Run, ...], AfterValidator(_some)]

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
            "select": tuple(re.split(r"\s+or\s+", found[2])) if found[2] else (),
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
        then = [", ".join(self.run)]
        if self.select:
            then.append(f"on {' or '.join(self.select)}")
        return f"{self.name}: {' '.join(when)} -> {' '.join(then)}"

    def dump(self) -> dict[str, Any]:
        """The policy in JSON's types, without defaults: `parse` reads it back."""
        return self.model_dump(mode="json", exclude_defaults=True)


class _Receiver(_Model):
    """See `probes.monitor.options.Receiver`."""

    source: Text
    source_port: int
    destination: Text
    destination_port: int


_DEFAULT = MonitorOptions()


class Monitor(_Model):
    """See `probes.monitor.options.MonitorOptions`."""

    bits: int = _DEFAULT.bits
    interval: float = _DEFAULT.interval
    input: Input = _DEFAULT.input
    receivers: tuple[_Receiver, ...] = ()
    drop_others: bool = _DEFAULT.drop_others
    seed: Text = _DEFAULT.seed
    offload: bool = _DEFAULT.offload

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        options = self.options()
        for number, receiver in enumerate(options.receivers):
            _possible(receiver, at=f"receivers[{number}]")
        _possible(options)
        return self

    def options(self) -> MonitorOptions:
        receivers = tuple(Receiver(**receiver.model_dump()) for receiver in self.receivers)
        return MonitorOptions(**{**dict(self), "receivers": receivers})


_TRACING = PathOptions()


class PolicyTracing(_Model):
    """See `probes.path.options.PathOptions`; for policies that trace, and all other traces."""

    rate: float = _TRACING.rate
    per: Per = _TRACING.per
    burst: int = _TRACING.burst
    order: Order = _TRACING.order
    guard: Guard = _TRACING.guard
    guarded: Guarded = _TRACING.guarded
    pass_answers: bool = _TRACING.pass_answers
    timeout: float = _TRACING.timeout
    max_hops: int = _TRACING.max_hops
    mtu: bool = _TRACING.mtu

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        _possible(PathOptions(**dict(self)))
        return self


def _possible(options: MonitorOptions | PathOptions | Receiver, at: str = "") -> None:
    try:
        options.check()
    except UsageError as error:
        raise invalid(error.message.removeprefix("receiver: "), at=at, hint=error.hint) from None


class PolicyFile(_Model):
    """A file of policies, with profiles, applications and options."""

    policy: tuple[Policy, ...] = ()
    profiles: dict[Name, Annotated[tuple[Name, ...], AfterValidator(_some)]] = Field(
        default_factory=dict
    )
    """Named sets of applications (S2.12)."""
    application: tuple[Text, ...] = ()
    """Files with configurations of applications, relative to this one (S2.16)."""
    monitor: Monitor = Monitor()
    paths: PolicyTracing = PolicyTracing()
    _applications: tuple[ProbeConfig, ...] = PrivateAttr(())

    @property
    def applications(self) -> tuple[ProbeConfig, ...]:
        """The configurations in those files."""
        return self._applications

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if len(self.policy) > MAX_POLICIES:
            raise invalid(f"there are {len(self.policy)}, and can be {MAX_POLICIES}", at="policy")
        names = [policy.name for policy in self.policy]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise invalid(f"there are two policies {name!r}", at=f"policy[{number}].name")
        return self


def load(path: str | Path) -> PolicyFile:
    """Read a file of policies, JSON or TOML by its name, and the applications that it names.

    Raises UsageError with the file and the key of any mistake.
    """
    path = Path(path)
    where = str(path)
    try:
        file = PolicyFile.model_validate(read_data(path, MAX_FILE, "a file of policies"))
    except ValidationError as error:
        raise config_error(error, PolicyFile, where) from None
    taken = [*BUILT_IN, TRACE]
    applications = []
    for number, name in enumerate(file.application):
        at = f"{where}: application[{number}]"
        application = _application(path.parent / name, at)
        if application.name in taken:
            raise UsageError(f"{at}: the name {application.name!r} is taken")
        taken.append(application.name)
        applications.append(application)
    taken.remove(TRACE)
    check_names(file.policy, taken, file.profiles, f"{where}: ")
    file._applications = tuple(applications)
    return file


def _application(path: Path, where: str) -> ProbeConfig:
    try:
        application = config.load(path)
    except UsageError as error:
        raise UsageError(f"{where}: {error.message}", hint=error.hint) from None
    if application.ingress is None or application.ingress.hook != "monitor":
        hint = 'an application has hook = "monitor"'
        raise UsageError(f"{where}: {path}: ingress.hook: it is another probe's", hint=hint)
    return application


def check_names(
    policies: Iterable[Policy],
    applications: Collection[str],
    profiles: Mapping[str, Collection[str]],
    where: str = "",
) -> None:
    """Check that all names exist. Raises UsageError, after `where`, with a hint."""
    for profile, names in profiles.items():
        if profile in (*applications, TRACE):
            what = "path tracing" if profile == TRACE else "an application"
            raise UsageError(f"{where}profiles.{profile}: {what} has this name")
        for name in names:
            if name not in applications:
                text = f"{where}profiles.{profile}: there is no application {name!r}"
                raise UsageError(text, hint=did_you_mean(name, sorted(applications)))
    known = sorted({*applications, *profiles, TRACE})
    for policy in policies:
        for name in policy.run:
            if name.partition(":")[0] not in known:
                text = f"{where}policy {policy.name!r}: run: there is no application {name!r}"
                raise UsageError(text, hint=did_you_mean(name, known))


def resolve(policy: Policy, profiles: Mapping[str, Collection[str]]) -> tuple[tuple[str, ...], int]:
    """A policy's applications, each once and in order, and the number of top flows to trace."""
    names: dict[str, None] = {}
    traced = 0
    for name in policy.run:
        what, _, count = name.partition(":")
        if what == TRACE:
            traced = max(traced, int(count or TOP_FLOWS))
        else:
            names.update(dict.fromkeys(profiles.get(name, (name,))))
    return tuple(names), traced
