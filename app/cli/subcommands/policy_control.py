"""`probedeck policy`: the policies of a controller that runs, by its API."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from app.cli.command import argument, connected, controller_options, option, print_table
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


@policy.command(epilog=EXAMPLES)
@_given
@controller_options
def add(given: str, **remote: str) -> None:
    """Add policies to a running controller."""
    with connected(remote) as client:
        monitor = _monitor(client)
        known = {info.policy.name for info in monitor.policies}
        policies = _policies(given, monitor)
        for each in policies:
            if each.name in known:
                hint = "probedeck policy replace changes it"
                raise UsageError(f"there is a policy {each.name!r}", hint=hint)
        for each in policies:
            _say(client.set_policy(each), "added")


@policy.command(epilog=EXAMPLES)
@_given
@controller_options
def replace(given: str, **remote: str) -> None:
    """Replace policies by others of the same names."""
    with connected(remote) as client:
        monitor = _monitor(client)
        policies = _policies(given, monitor)
        for each in policies:
            _check_known(each.name, [info.policy.name for info in monitor.policies])
        for each in policies:
            _say(client.set_policy(each), "replaced")


@policy.command("list")
@_json
@controller_options
def list_policies(as_json: bool, **remote: str) -> None:
    """List all policies with their states."""
    with connected(remote) as client:
        found = _monitor(client).policies
    if as_json:
        print(json.dumps([_dumped(info) for info in found], indent=2))
        return
    head = "NAME", "STATE", "PACKETS", "WHEN", "RUNS"
    print_table([head, *map(_row, found)])


@policy.command()
@_name
@_json
@controller_options
def show(name: str, as_json: bool, **remote: str) -> None:
    """Print a policy in its short form.

    JSON has its state, too.
    """
    with connected(remote) as client:
        found = {info.policy.name: info for info in _monitor(client).policies}
    _check_known(name, found)
    info = found[name]
    print(json.dumps(_dumped(info), indent=2) if as_json else info.policy.to_short())


@policy.command()
@_name
@controller_options
def remove(name: str, **remote: str) -> None:
    """Remove a policy."""
    with connected(remote) as client:
        client.remove_policy(name)
        print(f"{name}: removed", file=sys.stderr)


@policy.command()
@_name
@controller_options
def activate(name: str, **remote: str) -> None:
    """Run a policy until it is deactivated."""
    with connected(remote) as client:
        _say(client.activate_policy(name))


@policy.command()
@_name
@controller_options
def deactivate(name: str, **remote: str) -> None:
    """End a policy, whatever activated it."""
    with connected(remote) as client:
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
        print(f"warning: {given}: [{section}] counts at the start only", file=sys.stderr)
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


def _dumped(info: PolicyInfo) -> object:
    from pydantic import TypeAdapter

    from probes.monitor.info import PolicyInfo

    return TypeAdapter(PolicyInfo).dump_python(info, mode="json")


def _say(info: PolicyInfo, done: str = "") -> None:
    """Print a policy's state to standard error: standard output holds data."""
    words = ", ".join(filter(None, (done, info.state.label)))
    print(f"{info.policy.name}: {words}", file=sys.stderr)
