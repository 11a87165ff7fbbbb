"""Commands that need no console: each runs on a control plane, with the command's value.

A call may take as long as a compile. Imports are inside: the registry names these functions, and
the console starts without numpy and pydantic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.files import as_invoker, expand
from bpf.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Parameter

    from probes.config.model import ProbeConfig
    from probes.control_plane import ControlPlane
    from probes.monitor.info import MonitorInfo, PolicyInfo
    from probes.operation import Operation
    from probes.reports import ProbeInfo


def placed(
    config: ProbeConfig, interface: str, monitor: Callable[[], MonitorInfo | None]
) -> ProbeConfig:
    """Return a configuration on `interface`, or else, if it is an application's, on the monitor's.

    Raises UsageError if it needs an interface and there is none.
    """
    if not interface and config.is_application and (info := monitor()):
        interface = info.interface
    return config.on(interface)


def add_probe(plane: ControlPlane, file: str, *, force: bool = False) -> ProbeInfo:
    """Start the probe of a configuration. Its default interface is the one of other probes.

    Raises CutError, unless `force`, if a program would take every packet of its interface.
    """
    from probes.config.model import load

    with as_invoker():
        config = load(expand(file))
    return _start(plane, config, force=force)


def ready_config(plane: ControlPlane, name: str) -> ProbeConfig:
    """Return the configuration of a ready probe, on the interface of other probes.

    A second empty probe gets a number behind its name. Raises UsageError for an unknown name.
    """
    from app.config.ready_probes import EMPTY, ready_probe
    from probes.config.model import load

    config = load(ready_probe(name).file)
    taken = {info.name for info in plane.probes()}
    if name == EMPTY and name in taken:
        number = next(n for n in range(2, len(taken) + 3) if f"{name}-{n}" not in taken)
        config = config.model_copy(update={"name": f"{name}-{number}"})
    return _on_interface(plane, config)


def add_ready_probe(plane: ControlPlane, name: str, *, force: bool = False) -> ProbeInfo:
    """Start a ready probe, as `add_probe` does."""
    return _start(plane, ready_config(plane, name), force=force)


def _on_interface(plane: ControlPlane, config: ProbeConfig) -> ProbeConfig:
    programs = [program for info in plane.probes() for program in info.programs]
    interface = programs[0].interface if programs else ""
    return placed(config, "" if config.is_application else interface, plane.monitor)


def _start(plane: ControlPlane, config: ProbeConfig, *, force: bool) -> ProbeInfo:
    from probes.control.trials import CutError

    config = _on_interface(plane, config)
    # Asked here: another host's refusal arrives without its type. Compiling is done once.
    if not force and (cuts := plane.check(config).cuts):
        raise CutError(config.name, cuts)
    return plane.add(config, force=force)


def set_policies(plane: ControlPlane, text: str) -> tuple[PolicyInfo, ...]:
    """Add ready policies by their name or group, or one in its short form; they replace those of
    their names."""
    from probes.monitor.policy.ready import policies_of

    return tuple(map(plane.set_policy, policies_of(text)))


def toggle_policy(plane: ControlPlane, name: str) -> None:
    """Activate a policy, or deactivate it if its applications run."""
    monitor = plane.monitor()
    infos = {info.policy.name: info for info in monitor.policies} if monitor else {}
    if name not in infos:
        raise UsageError(f"there is no policy {name!r}", hint=did_you_mean(name, infos))
    runs = infos[name].state.runs
    (plane.deactivate_policy if runs else plane.activate_policy)(name)


def call(operation: Operation[..., Any], plane: ControlPlane, *values: object) -> Any:
    """Make an operation with typed values; a missing value is the method's default."""
    pairs = zip(operation.parameters, values, strict=False)
    given = [typed(each, str(text)) for each, text in pairs]
    of = getattr(plane, operation.part) if operation.part else plane
    return getattr(of, operation.name)(*given)


def typed(of: Parameter, text: str) -> object:
    """Return the value of an argument from its text. Raises UsageError."""
    if of.annotation == "FlowFilter":
        from probes.flow.filter import FlowFilter

        return FlowFilter.parse(text)
    if of.annotation == "OutputConfig":
        from probes.reports import OutputConfig

        return OutputConfig(text)
    if of.annotation == "Value":
        from probes.tables.entries import value_of

        return value_of(text)
    if of.name == "destination":
        from app.resolve import address

        return address(text)
    return int(text) if of.annotation == "int" else text


def switch(name: str, plane: ControlPlane, choice: str = "") -> None:
    """Turn an optional probe `on` or `off`; without a choice, to the other of its present state."""
    runs = any(info.name == name for info in plane.probes())
    plane.switch(name, choice == "on" if choice else not runs)


def trace(plane: ControlPlane, destination: str) -> None:
    from app.resolve import addresses

    for each in addresses(destination):
        plane.trace(each)


def set_path_options(plane: ControlPlane, text: str) -> None:
    """Change options of path tracing, `guarded=all rate=50`. Running traces start again."""
    from probes.config.options import changed

    options = changed(plane.path_options, text)
    options.check()
    plane.path_options = options
