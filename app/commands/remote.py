"""Commands that need no screen, as a controller does them: for those who ask from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.commands.line import Invocation
from app.files import as_invoker, expand
from app.resolve import address, addresses
from bpf.errors import ProbedeckError, TextError, UsageError, did_you_mean
from probes.control_plane import ControlPlane, ProbeInfo
from probes.flow.filter import FlowFilter
from probes.monitor.info import PolicyInfo


def perform(plane: ControlPlane, asked: Invocation) -> None:
    """Run a command to its end. Raises ProbedeckError if it needs a console or fails."""
    command = asked.command
    if command.name not in PERFORMED:
        raise ProbedeckError(f"{command.name} needs a console, and this controller has none")
    if not asked.values:
        what = command.parameters[0].name
        raise UsageError(f"{command.name} needs a {what}", hint=f"usage: {command.usage}")
    text = str(asked.values[0])
    try:
        PERFORMED[command.name](plane, text)
    except TextError as error:
        if error.text != text:
            raise
        # The value is the last of the line.
        column = len(asked.line) - len(text) + error.column
        raise TextError(error.problem, asked.line, column, hint=error.hint) from None


def add_probe(plane: ControlPlane, file: str, *, force: bool = False) -> ProbeInfo:
    """Start the probe of a configuration. Its default interface is the one of other probes.

    Raises CutError, unless `force`, if a program would take every packet of its interface.
    """
    # pydantic, which the first paint does without.
    from probes.config.model import load
    from probes.control.verdicts import CutError

    programs = [program for info in plane.probes() for program in info.programs]
    interface = programs[0].interface if programs else ""
    with as_invoker():
        config = load(expand(file))
    config = config.on(interface)
    # Asked here: another host's refusal arrives without its type. Compiling is done once.
    if not force and (cuts := plane.check(config).cuts):
        raise CutError(config.name, cuts)
    return plane.add(config, force=force)


def set_policy(plane: ControlPlane, text: str) -> PolicyInfo:
    """Add a policy in its short form, or put it in the place of the one of its name."""
    # As above.
    from probes.monitor.policy import Policy

    return plane.set_policy(Policy.parse_short(text))


def _toggle(plane: ControlPlane, name: str) -> None:
    monitor = plane.monitor()
    infos = {info.policy.name: info for info in monitor.policies} if monitor else {}
    if name not in infos:
        raise UsageError(f"there is no policy {name!r}", hint=did_you_mean(name, infos))
    runs = infos[name].state.runs
    (plane.deactivate_policy if runs else plane.activate_policy)(name)


def _trace(plane: ControlPlane, destination: str) -> None:
    for each in addresses(destination):
        plane.trace(each)


PERFORMED: Mapping[str, Callable[[ControlPlane, str], object]] = {
    "flow.capture": lambda plane, text: plane.reconfigure(FlowFilter.parse(text)),
    "path.trace": _trace,
    "path.untrace": lambda plane, destination: plane.untrace(address(destination)),
    "trigger.add": set_policy,
    "trigger.toggle": _toggle,
    "trigger.remove": lambda plane, name: plane.remove_policy(name),
    "program.rollback": lambda plane, name: plane.roll_back(name),
    "probe.add": add_probe,
    "probe.remove": lambda plane, name: plane.remove(name),
    "probe.export": lambda plane, name: plane.export(name),
}
"""What is done, with the command's value; it may take as long as a compile."""
