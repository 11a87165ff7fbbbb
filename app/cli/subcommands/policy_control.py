"""`probedeck policy`: the policies of a controller that runs, by its API."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from app.cli.command import argument, controls, option, print_json, print_table, say
from app.cli.subcommands.policy import is_file, policy
from app.files import as_invoker
from bpf.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from app.api.client import Client
    from probes.monitor.info import MonitorInfo, PolicyInfo
    from probes.monitor.policy import Policy

__all__ = ["policy"]
EXAMPLES = """\b
Examples:
  probedeck policy add 'ntp: rate(packets on sport:123) > 1k/s -> heavy_hitters on sport:123'
  probedeck policy replace policies.toml
  probedeck policy list
  probedeck policy activate ntp
  probedeck policy list --connect https://router1:8765 --token ~/.router1"""
_given = argument("given", "TEXT|FILE", "A policy, or a .toml or .json file of policies.")
_name = argument("name", "NAME", "The policy's name.")
_json = option("--json", "as_json", is_flag=True, help="Print JSON.")


@controls(policy, "add", epilog=EXAMPLES)
@_given
def add(client: Client, given: str) -> None:
    """Add policies to a running controller."""
    monitor = _monitor(client)
    known = {info.policy.name for info in monitor.policies}
    policies = _policies(given, monitor)
    for each in policies:
        if each.name in known:
            hint = "probedeck policy replace changes it"
            raise UsageError(f"there is a policy {each.name!r}", hint=hint)
    for each in policies:
        _say(client.set_policy(each), "added")


@controls(policy, "replace", epilog=EXAMPLES)
@_given
def replace(client: Client, given: str) -> None:
    """Replace policies by others of the same names."""
    monitor = _monitor(client)
    policies = _policies(given, monitor)
    for each in policies:
        _check_known(each.name, [info.policy.name for info in monitor.policies])
    for each in policies:
        _say(client.set_policy(each), "replaced")


@controls(policy, "list")
@_json
def list_policies(client: Client, as_json: bool) -> None:
    """List all policies with their states."""
    found = _monitor(client).policies
    if as_json:
        _print_json(found)
        return
    head = "NAME", "STATE", "PACKETS", "WHEN", "RUNS"
    print_table([head, *map(_row, found)])


@controls(policy, "show")
@_name
@_json
def show(client: Client, name: str, as_json: bool) -> None:
    """Print a policy in its short form.

    JSON has its state, too.
    """
    found = {info.policy.name: info for info in _monitor(client).policies}
    _check_known(name, found)
    if as_json:
        _print_json(found[name])
    else:
        print(found[name].policy.to_short())


@controls(policy, "remove")
@_name
def remove(client: Client, name: str) -> None:
    """Remove a policy."""
    client.remove_policy(name)
    say(f"{name}: removed")


@controls(policy, "activate")
@_name
def activate(client: Client, name: str) -> None:
    """Run a policy until it is deactivated."""
    _say(client.activate_policy(name))


@controls(policy, "deactivate")
@_name
def deactivate(client: Client, name: str) -> None:
    """End a policy, whatever activated it."""
    _say(client.deactivate_policy(name))


def _monitor(client: Client) -> MonitorInfo:
    if monitor := client.monitor():
        return monitor
    raise UsageError(f"no monitor runs at {client.url}", hint="probedeck run --monitor starts one")


def _policies(given: str, monitor: MonitorInfo) -> Sequence[Policy]:
    """Read a text or a file. The file's profiles are replaced by their applications."""
    from probes.monitor.policy import Policy, load

    if not is_file(given):
        return (Policy.parse_short(given),)
    running = [each.name for each in monitor.applications]
    with as_invoker():
        file = load(given, [*running, *monitor.profiles])
    for application in file.applications:
        if application.name not in running:
            hint = f"probedeck probe add {application.origin}"
            raise UsageError(f"application {application.name!r} does not run there", hint=hint)
    for section in file.model_fields_set & {"monitor", "paths"}:
        say(f"warning: {given}: [{section}] counts at the start only")
    return tuple(
        each.model_copy(
            update={"run": tuple(n for name in each.run for n in file.profiles.get(name, (name,)))}
        )
        for each in file.policy
    )


def _check_known(name: str, names: Collection[str]) -> None:
    if name not in names:
        raise UsageError(f"there is no policy {name!r}", hint=did_you_mean(name, names))


def _row(info: PolicyInfo) -> tuple[str, ...]:
    state = f"{info.state.label}, forced" if info.forced else info.state.label
    return info.policy.name, state, str(info.selected), info.policy.when, ", ".join(info.policy.run)


def _print_json(infos: object) -> None:
    from probes.monitor.info import PolicyInfo

    print_json(tuple[PolicyInfo, ...] if isinstance(infos, tuple) else PolicyInfo, infos)


def _say(info: PolicyInfo, done: str = "") -> None:
    """Print a policy's state to standard error: standard output holds data."""
    words = ", ".join(filter(None, (done, info.state.label)))
    say(f"{info.policy.name}: {words}")
