"""Files of policies, with profiles, applications, and options of the monitor and of tracing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator

from bpf.errors import UsageError
from probes.config import model as config
from probes.config.config_errors import config_error, invalid
from probes.config.files import read_data
from probes.config.map_config import Name, Text
from probes.config.model import MAX_FILE, ProbeConfig
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.policy.model import BUILT_IN, TRACE, Policy, PolicyModel, some
from probes.monitor.policy.names import check_names
from probes.monitor.state import MAX_POLICIES
from probes.path.options import Guard, Guarded, Order, PathOptions, Per


class _Receiver(PolicyModel):
    """See `probes.monitor.options.Receiver`."""

    source: Text
    source_port: int
    destination: Text
    destination_port: int


_DEFAULT = MonitorOptions()


class Monitor(PolicyModel):
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


class PolicyTracing(PolicyModel):
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


class PolicyFile(PolicyModel):
    """A file of policies, with profiles, applications and options."""

    policy: tuple[Policy, ...] = ()
    profiles: dict[Name, Annotated[tuple[Name, ...], AfterValidator(some)]] = Field(
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
