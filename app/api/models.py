"""Answers of the API that the control plane has no dataclass for, their JSON, and its errors."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, make_dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import pydantic.dataclasses
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    PlainSerializer,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, core_schema

from app.api import wire
from bpf.compiler import CompileError, Diagnostic
from bpf.errors import KernelError, MistakesError, ProbedeckError, TextError, UsageError, together
from probes import control_plane as plane
from probes import reports
from probes.config.model import ProbeConfig, Side
from probes.config.options import settings_of, values_of
from probes.flow.filter import FlowFilter
from probes.monitor import info as monitor_info
from probes.monitor.policy import Policy
from probes.monitor.sketch import Sketch
from probes.monitor.state import PolicyState
from probes.path import traced
from probes.path.options import OwnFlow, PathOptions, TracedFlow
from probes.reports import BudgetUse, OutputConfig
from probes.segment.options import SegmentOptions, SegmentStatus
from probes.snapshot import Event, HookStatus

_Byte = Annotated[int, Field(ge=0, le=255, strict=True)]
_Port = Annotated[int, Field(ge=0, le=65535, strict=True)]
_Strict = Field(strict=True)


@dataclass(frozen=True, slots=True)
class _FlowObject:
    """A flow to a destination; of ICMP echo both ports are 0."""

    protocol: _Byte
    source_port: _Port
    destination_port: _Port


def _as_object(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    inner = handler(_FlowObject)
    back = core_schema.plain_serializer_function_ser_schema(
        lambda flow: _FlowObject(*flow), return_schema=inner
    )
    return core_schema.no_info_after_validator_function(
        lambda flow: TracedFlow(*astuple(flow)), inner, serialization=back
    )


FlowObject = Annotated[TracedFlow, GetPydanticSchema(_as_object)]
"""An object with the names of its fields, not an array as tuples are."""

_STATES = {state.label: state for state in PolicyState}
StateName = Annotated[
    PolicyState,
    BeforeValidator(
        lambda words: _STATES.get(words, words),
        json_schema_input_type=Literal["off", "armed", "active", "hold", "cool-down"],
    ),
    PlainSerializer(lambda state: state.label, return_type=str),
]
"""A policy's state by its name, not by its number."""
MeasuredOrNull = Annotated[
    float,
    BeforeValidator(
        lambda value: math.nan if value is None else value, json_schema_input_type=float | None
    ),
    PlainSerializer(lambda value: None if math.isnan(value) else value, return_type=float | None),
]
"""A number; null, as JSON has no NaN, if the measurement was impossible."""
# pydantic looks up the annotations of a dataclass in the module that defines it. These modules do
# not import pydantic, so that a console starts faster.
for module in (plane, reports, monitor_info, traced):
    vars(module).update(
        ProbeConfig=ProbeConfig,
        Side=Side,
        TracedFlow=FlowObject,
        Policy=Policy,
        PolicyState=StateName,
        Measured=MeasuredOrNull,
    )
# Clients and endpoints resolve the annotations of operations.
vars(plane).update(
    FlowFilter=FlowFilter, MonitorInfo=monitor_info.MonitorInfo, OwnFlow=OwnFlow,
    PolicyInfo=monitor_info.PolicyInfo, Sketch=Sketch, Traced=traced.Traced,
    SegmentOptions=SegmentOptions, SegmentStatus=SegmentStatus,
)  # fmt: skip
vars(reports).update(Diagnostic=Diagnostic)

# A misspelled option must not be taken for a missing one. The module does not import pydantic.
OutputConfig.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]


def _path_object(_: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of an object with the settings of PathOptions."""
    known = settings_of(PathOptions)
    namespace = {
        "__doc__": "Options with the names and defaults of PathOptions.",
        "__pydantic_config__": ConfigDict(extra="forbid"),
    }
    fields = [(name, each.type, getattr(PathOptions(), name)) for name, each in known.items()]
    inner = make_dataclass("PathSettings", fields, namespace=namespace)

    def typed(values: object) -> object:
        """Refuse values of another type: `"1"` is no number, and 1 is not true."""
        if isinstance(values, PathOptions):
            return values_of(values)
        if not isinstance(values, dict):
            return values
        for name in known.keys() & values.keys():
            value = values[name]
            # In JSON, 2.0 is a whole number.
            if known[name].kind is int and isinstance(value, float) and value.is_integer():
                continue
            try:
                values = values | {name: known[name].of_toml(value)}
            except UsageError as error:
                raise ValueError(f"{name} {error.message}") from None
        return values

    schema = handler.generate_schema(inner)
    back = core_schema.plain_serializer_function_ser_schema(
        lambda options: inner(**values_of(options)), return_schema=schema
    )
    read = core_schema.no_info_before_validator_function(typed, schema)
    return core_schema.no_info_after_validator_function(
        lambda options: PathOptions(**vars(options)), read, serialization=back
    )


PathObject = Annotated[PathOptions, GetPydanticSchema(_path_object)]
"""An object with the settings of PathOptions."""
MAX_BODY = 4 << 20
"""Bytes of a request."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One of several mistakes in a request."""

    error: str
    hint: str = ""
    text: str = ""
    """The text with the mistake, such as a condition."""
    column: int = 0
    """Column in it, from 1; 0: no text is known."""


# pydantic's own, which keeps its schema: more than a hundred answers mention it.
@pydantic.dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Why a request was refused. Running probes keep running."""

    error: str
    hint: str = ""
    """The way to correct it."""
    exit_code: int = ProbedeckError.exit_code
    """Exit code of a command with this error: 1 runtime, 2 usage, 4 privilege or kernel."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Errors of a source that does not compile or verify, by place."""
    verifier_log: str = ""
    mistakes: tuple[Mistake, ...] = ()
    """Every mistake of a policy or configuration, the first one being `error`."""


@dataclass(frozen=True, slots=True)
class ControllerStatus:
    """The controller itself."""

    version: str
    read_only: str
    """Why changes are refused; empty where this client may make them."""
    failure: str
    """Why the built-in probe ended; empty while it runs."""
    modes: dict[str, str]
    """How each hook in use is attached."""
    unwritten: dict[str, int] = field(default_factory=dict)
    """Rows that could not be written to the tables of the run, by table."""
    memory: reports.MemoryUse = field(default_factory=lambda: reports.MemoryUse(0, 0))
    """Kernel memory of all maps, in bytes."""
    hooks: tuple[HookStatus, ...] = ()
    """The hooks in use, why each was chosen, and the programs of others that run before ours."""
    interval: float = 1.0
    """Seconds of a window of the flow probe; without it the longest interval of all probes."""
    capture: str = ""
    """The filter of the flows that the flow probe counts; empty if it counts every flow."""
    budget: BudgetUse = field(default_factory=BudgetUse)
    """The CPU budget, its use, and the steps in force."""
    utc_ns: int = 0
    """The controller's clock at this answer, in nanoseconds since the epoch."""


def status_of(of: plane.ControlPlane, version: str, read_only: str = "") -> ControllerStatus:
    """Return the state of a controller now; `read_only` is the reason of a reader's own limit."""
    hooks, failure = of.hook_status(), of.failure()
    modes = {each.hook: each.mode for each in hooks}
    return ControllerStatus(
        version, of.read_only or read_only, str(failure or ""), modes, dict(of.unwritten),
        of.memory(), hooks, of.interval, of.capture, of.budget(), time.time_ns(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event of this run, the first one having number 1."""

    number: int
    event: Event


@dataclass(frozen=True, slots=True)
class Events:
    """Events after a number, oldest first."""

    events: tuple[Numbered, ...]
    last: int
    """Number for the next request."""
    forgotten: int
    """Number of requested events that are no longer kept."""


@dataclass(frozen=True, slots=True)
class CaptureFilter:
    """The capture filter of the flow probe."""

    filter: str
    """As for `--capture`: `proto:tcp port:80,443`; empty: all."""


@dataclass(frozen=True, slots=True)
class SegmentRequest:
    """Packets whose digests the host records, as the other host of the segment does."""

    key: str
    """The same on both hosts, 1 to 256 characters; nobody else should know it."""
    ratio: Annotated[int, _Strict] = 1
    """One of so many packets is chosen."""
    filter: str = ""
    """As for `--capture`: packets that pass both hosts."""
    interval: Annotated[float, _Strict] = 1.0
    """Seconds of a window; 0: only exports end windows."""
    lease: Annotated[float, _Strict] = 0.0
    """The probe ends so many seconds after the last such request; 0: only a request ends it."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Destination to trace."""

    destination: str
    """An address, IPv4 or IPv6."""
    flow: FlowObject | None = None
    """None: all flows to it."""
    own: str = ""
    """Flow that the tracer sends while no application does: `icmp`, `udp:33434`, `tcp:443`."""


@dataclass(frozen=True, slots=True)
class ShortPolicy:
    """A policy in its short form."""

    short: str
    """`flood: flows > 500 -> heavy_hitters`."""


@dataclass(frozen=True, slots=True)
class Registers:
    """A HyperLogLog sketch of 5-tuples."""

    bits: int
    """log2 of the number of registers."""
    seed: str
    """Key of the hash: only registers with the same seed can be merged."""
    estimate: float
    """Distinct 5-tuples."""
    low: float
    """Least number at 95 % confidence."""
    high: float
    """Largest number at 95 % confidence."""
    registers: str
    """Base64 of the registers: a hash value each, a little-endian u32."""
    ranks: str
    """Base64 of the registers of a classic HyperLogLog, a byte each."""


class UnknownError(UsageError):
    """No such probe, window, destination, monitor or policy."""


class ExistsError(UsageError):
    """A probe or policy of this name exists."""


class ForbiddenError(UsageError):
    """This client may only read, or the controller is read-only."""


def problem_of(error: ProbedeckError) -> Problem:
    problem = Problem(error.message, error.hint, error.exit_code)
    if isinstance(error, CompileError):
        return replace(problem, diagnostics=error.diagnostics, verifier_log=error.verifier_log)
    if isinstance(error, TextError | MistakesError):
        mistakes = (
            Mistake(each.problem, each.hint, each.text, each.column)
            if isinstance(each, TextError)
            else Mistake(each.message, each.hint)
            for each in error.mistakes
        )
        return replace(problem, mistakes=tuple(mistakes))
    return problem


def error_of(problem: Problem) -> ProbedeckError:
    """Return the error that the controller reported."""
    if problem.diagnostics:
        error: ProbedeckError = CompileError("", problem.diagnostics, problem.verifier_log)
        error.args = (problem.error,)
        error.message, error.hint = problem.error, problem.hint
        return error
    if problem.mistakes:
        return together(
            TextError(each.error, each.text, each.column, hint=each.hint)
            if each.column
            else UsageError(each.error, hint=each.hint)
            for each in problem.mistakes
        )
    kinds = {kind.exit_code: kind for kind in (UsageError, KernelError)}
    return kinds.get(problem.exit_code, ProbedeckError)(problem.error, hint=problem.hint)


_T = TypeVar("_T")
_ERROR_NUMBER = re.compile(r"^\[Errno -?\d+\] ")
adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Reads and writes a type as JSON."""


def parsed(kind: type[_T], answer: bytes, url: str) -> _T:
    """Return the object that an answer holds as JSON. Raises ProbedeckError."""
    try:
        found: _T = adapter(kind).validate_json(answer)
    except ValidationError:
        raise ProbedeckError(
            f"{url} answers what this version can't read",
            hint="is it a probedeck of another version?",
        ) from None
    return found


def refusal(status: int, reason: str, body: bytes, url: str) -> ProbedeckError:
    """Return the error that an answer other than 2xx reports."""
    try:
        return error_of(adapter(Problem).validate_json(body))
    except ValidationError:
        return ProbedeckError(f"{url} answers {status} {reason}")


def no_controller(url: str, words: str) -> ProbedeckError:
    """Return the error of a connection that is refused, or not possible."""
    if "Permission denied" in words:
        hint = "it is its owner's, or the group's of --api-group"
        return ProbedeckError(f"{url} is not for this user", hint=hint)
    # httpx shows the error number of the system, too.
    reason = _ERROR_NUMBER.sub("", words)
    return ProbedeckError(f"no controller at {url}: {reason}", hint="start one: probedeck serve")


def check_stream(media_type: str, url: str) -> None:
    """Raise MalformedError if a stream does not have this version's records."""
    if media_type != wire.MEDIA_TYPE:
        raise wire.MalformedError(f"{url} streams {media_type}, which this version can't read")
