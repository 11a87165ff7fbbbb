"""Files of policies, with profiles, applications, and options of the monitor and of tracing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias, get_type_hints

from pydantic import (
    AfterValidator,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    create_model,
    model_validator,
)

from bpf.errors import UsageError, together
from probes.config import model as config
from probes.config.config_errors import ConfigFault, faults_of, invalid, validated
from probes.config.files import read_document
from probes.config.map_config import Name, Text
from probes.config.model import MAX_FILE, ProbeConfig
from probes.monitor.options import MonitorOptions, Receiver
from probes.monitor.policy.model import BUILT_IN, TRACE, Policy, PolicyModel, some
from probes.monitor.policy.names import NamedFilters, unknown_names
from probes.monitor.state import MAX_POLICIES
from probes.path.options import PathOptions

_TEXTS: Mapping[Any, Any] = {str: Text, tuple[str, ...]: tuple[Text, ...]}
_OF_RUNS = ("ingress", "destinations", "allow_actions")
"""Fields of options that only a run sets."""


def _table(options: type[MonitorOptions | PathOptions | Receiver], **types: Any) -> Any:
    """Return the type of a table whose keys are the fields of a class of options.

    Its value has the given fields alone, so that a run knows what the file sets. `types` are the
    types of fields whose values are tables, too.
    """
    known = {**get_type_hints(options), **types}
    keys: dict[str, Any] = {
        each.name: (
            _TEXTS.get(known[each.name], known[each.name]),
            ... if each.default is MISSING else each.default,
        )
        for each in fields(options)
        if each.name not in _OF_RUNS
    }
    model = create_model(options.__name__, __base__=PolicyModel, **keys)

    def given(table: PolicyModel) -> Mapping[str, Any]:
        values = {name: getattr(table, name) for name in table.model_fields_set}
        try:
            options(**values).check()
        except UsageError as error:
            raise invalid(error.message.removeprefix("receiver: "), hint=error.hint) from None
        return values

    return Annotated[model, AfterValidator(given), PlainSerializer(lambda value: value)]


if TYPE_CHECKING:
    MonitorTable: TypeAlias = Mapping[str, Any]
    PathTable: TypeAlias = Mapping[str, Any]
else:
    _Receiver = Annotated[_table(Receiver), AfterValidator(lambda given: Receiver(**given))]
    MonitorTable = _table(MonitorOptions, receivers=tuple[_Receiver, ...])
    PathTable = _table(PathOptions)


class PolicyFile(PolicyModel):
    """A file of policies, with profiles, applications and options."""

    policy: tuple[Policy, ...] = ()
    profiles: dict[Name, Annotated[tuple[Name, ...], AfterValidator(some)]] = Field(
        default_factory=dict
    )
    """Named sets of applications (S2.12)."""
    application: tuple[Text, ...] = ()
    """Files with configurations of applications, relative to this one (S2.16)."""
    filters: dict[Name, Text] = Field(default_factory=dict)
    """Filters that policies name as `@datagrams`."""
    monitor: MonitorTable = Field(default_factory=dict)
    """Fields of MonitorOptions that the file sets."""
    paths: PathTable = Field(default_factory=dict)
    """Fields of PathOptions that the file sets; for policies that trace, and all other traces."""
    _applications: tuple[ProbeConfig, ...] = PrivateAttr(())

    @property
    def applications(self) -> tuple[ProbeConfig, ...]:
        """The configurations in those files."""
        return self._applications

    @model_validator(mode="wrap")
    @classmethod
    def _fits_together(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Add what is wrong with all policies together to the mistakes of each."""
        return validated(cls, handler, data, list(_together(data)))


def _together(data: object) -> Iterator[ConfigFault]:
    policies = _list(data, "policy")
    if len(policies) > MAX_POLICIES:
        yield ConfigFault(("policy",), f"there are {len(policies)}, and can be {MAX_POLICIES}")
    names: list[object] = []
    for number, each in enumerate(policies):
        name = each.name if isinstance(each, Policy) else _of(each, "name")
        if name is not None and name in names:
            yield ConfigFault(("policy", number, "name"), f"there are two policies {name!r}")
        names.append(name)


def _of(data: object, key: str) -> object:
    return data.get(key) if isinstance(data, dict) else None


def _list(data: object, key: str) -> Sequence[Any]:
    found = _of(data, key)
    return found if isinstance(found, list | tuple) else ()


def _texts(data: object, key: str) -> Sequence[str]:
    return [each for each in _list(data, key) if isinstance(each, str)]


def load(path: str | Path, others: Sequence[str] = ()) -> PolicyFile:
    """Read a file of policies, JSON or TOML by its name, and the applications that it names.

    `others` are the names of further applications that its policies may run.
    Raises UsageError with all mistakes, each with the file, line, column and key.
    """
    path = Path(path)
    document = read_document(path, MAX_FILE, "a file of policies")
    data = document.data
    filters = NamedFilters(_of(data, "filters"))
    faults = list(filters.faults)
    file = PolicyFile()
    try:
        file = PolicyFile.model_validate(data, context=filters.texts)
    except ValidationError as error:
        faults += (each for each in faults_of(error, PolicyFile) if not filters.caused(each))
    taken = [*BUILT_IN, TRACE]
    applications = []
    for number, name in enumerate(_texts(data, "application")):
        try:
            application = _application(path.parent / name)
        except UsageError as error:
            keys = ("application", number)
            faults += (ConfigFault(keys, each.message, each.hint) for each in error.mistakes)
            taken.append(Path(name).stem)
            continue
        if application.name in taken:
            faults.append(
                ConfigFault(("application", number), f"the name {application.name!r} is taken")
            )
        taken.append(application.name)
        applications.append(application)
    taken.remove(TRACE)
    taken += others
    profiles = _of(data, "profiles")
    named = (
        {name: _texts(profiles, name) for name in profiles} if isinstance(profiles, dict) else {}
    )
    runs = [_texts(policy, "run") for policy in _list(data, "policy")]
    wrong = {fault.keys for fault in faults}
    faults += (each for each in unknown_names(runs, taken, named) if each.keys not in wrong)
    if faults:
        errors = [document.error(fault) for fault in faults]
        errors.sort(key=lambda error: error.place)
        raise together(errors)
    file._applications = tuple(applications)
    return file


def _application(path: Path) -> ProbeConfig:
    application = config.load(path)
    if application.ingress is None or application.ingress.hook != "monitor":
        hint = 'an application has hook = "monitor"'
        raise UsageError(f"{path}: ingress.hook: it is another probe's", hint=hint)
    return application
