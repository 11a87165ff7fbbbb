"""`probedeck policy`: check, test and control policies of the monitor."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING

import click

from app.cli.command import (
    CommandGroup,
    argument,
    controls,
    operations,
    option,
    print_json,
    print_table,
    say,
)
from app.files import as_invoker
from app.run.monitor import SHIPPED, policies_of
from bpf.errors import UsageError, did_you_mean
from bpf.quantities import duration
from probes.monitor.options import MonitorOptions
from probes.tunnels import Tunnels

if TYPE_CHECKING:
    from app.api.client import Client
    from probes.monitor.info import MonitorInfo, PolicyInfo
    from probes.monitor.policy import Policy

EXAMPLES = """\b
Examples:
  probedeck policy check 'flood: flows > 500 -> heavy_hitters'
  probedeck policy check 'dns: udp_packets / packets > 80% -> dns on port:53'
  probedeck policy check 'all: flows > 5 * baseline(60s) hold 5s -> trace:3'
  probedeck policy check policies.toml"""
TEST_EXAMPLES = """\b
Examples:
  probedeck policy test attack.pcap --policies policies.toml
  probedeck policy test attack.pcap --policies policies.toml --expect 'syn_flood by 3s'
  probedeck policy test office*.pcapng --policies policies.toml --expect none --junit out.xml
  probedeck policy test /var/lib/probedeck/record --policy '...' --expect 'flood by 03:12:07'"""
LOCAL = option(
    "--local", multiple=True, metavar="ADDRESS/PREFIX",
    help="Addresses of this host: packets from them are outgoing, for out_bytes and the like.",
)  # fmt: skip
_UNMET = 3
"""Exit code of an expectation that is not met."""

policy = CommandGroup(
    "policy", help="Check, test and control the policies of the monitor.", epilog=EXAMPLES
)


@policy.command(epilog=EXAMPLES)
@argument("given", "TEXT|FILE", "A policy, or a .toml or .json file of policies; or shipped.")
@option("--probe", multiple=True, metavar="FILE", help="An application's configuration.")
@option("--cost", is_flag=True, help="Measure the nanoseconds a packet of each policy; as root.")
def check(given: str, probe: tuple[str, ...], cost: bool) -> None:
    """Explain each policy in one line."""
    from probes.config.model import load

    probes = [load(path) for path in probe]
    path, texts = (given, []) if is_file(given) or given == SHIPPED else ("", [given])
    policies, said = policies_of(path, texts, probes)
    interval = said.get("interval", MonitorOptions().interval)
    for each in policies.policies:
        print(f"{each.name}: {'; '.join(_meaning(each, policies.profiles, interval))}")
    if cost:
        from app.lab.policy_cost import cost_texts

        for name, text in cost_texts(policies.policies, MonitorOptions(**said)).items():
            print(f"{name}: {text}")


@policy.command(epilog=TEST_EXAMPLES)
@argument(
    "captures", "FILE|DIR...", "Captures, pcap or pcapng files, and recordings.", nargs=-1,
    required=True,
)  # fmt: skip
@option("--policies", metavar="FILE", help="A .toml or .json file of policies.")
@option("--policy", "texts", multiple=True, metavar="TEXT", help="A policy in its short form.")
@option(
    "--expect", multiple=True, metavar="TEXT",
    help="A policy that must become active: 'NAME by 3s', 'NAME by 3s from ADDRESS to NETWORK', "
    "or 'only NAME by 3s' without another one; or 'none'. The time counts from the first frame; "
    "or it is a time of day in UTC, 'by 03:12:07'.",
)  # fmt: skip
@LOCAL
@option("--junit", metavar="FILE", help="Write the outcome of each expectation as JUnit XML.")
@option(
    "--interval", default=None, metavar="SECONDS", usual="the file's, or 1",
    help="Length of a window.",
)  # fmt: skip
@option(
    "--tunnels", type=click.Choice(list(map(str, Tunnels))), default=None,
    usual="the file's, or outer", help="Packets of tunnels that are counted.",
)  # fmt: skip
def test(
    captures: tuple[str, ...], policies: str, texts: tuple[str, ...], expect: tuple[str, ...],
    local: tuple[str, ...], junit: str, interval: float | None, tunnels: str | None,
) -> int:  # fmt: skip
    """Run policies over captures and recordings.

    The programs of the monitor and of the flow probe see each frame of a capture, and windows end
    by its clock. Of a recording, policies see the windows of the monitor or of flows; a policy that
    needs more is not tested. Applications do not run.

    Exit codes: 0 every expectation is met, 3 one is not, 2 a file cannot be read, and all others
    meet theirs.
    """
    from app.junit import write as write_junit
    from app.lab.capture import check_capture
    from app.lab.expectation import Expectation, lines, suite
    from app.lab.policy_runner import PolicyRunner
    from app.lab.recorded_runner import run_recording
    from app.recording.reader import Recording

    if not (policies or texts):
        raise UsageError("there is no policy to test", hint="give --policies or --policy")
    found, said = policies_of(policies, texts, ())
    if interval is not None:
        said = {**said, "interval": interval}
    if tunnels is not None:
        said = {**said, "tunnels": Tunnels(tunnels)}
    networks = networks_of(local)
    names = [each.name for each in found.policies]
    expected = [Expectation.parse(text, names) for text in expect]
    refused: dict[str, UsageError] = {}
    for name in captures:
        try:
            if is_recording(name):
                Recording(name).close()
            else:
                check_capture(name)
        except UsageError as error:
            refused[name] = error
            print(f"not tested: {error}", file=sys.stderr)
    if len(refused) == len(set(captures)):
        raise next(iter(refused.values()))
    judged = []
    with ExitStack() as stack:
        runner: PolicyRunner | None = None
        for name in captures:
            if name in refused:
                continue
            if is_recording(name):
                result, unit = run_recording(name, found.policies), "windows"
            else:
                options = MonitorOptions(**said)
                runner = runner or stack.enter_context(
                    PolicyRunner(found.policies, options, networks)
                )
                result, unit = runner.run_file(name), "frames"
            print(f"{name}: {result.frames} {unit} in {duration(result.seconds)}")
            for line in lines(result):
                print(line)
            outcomes = [each.judge(result) for each in expected]
            for outcome in outcomes:
                word = "met" if outcome.met else "NOT MET"
                print(f"  {word}: {outcome.expectation}: {outcome.reason}")
            judged.append((name, result, outcomes))
    if junit:
        write_junit(junit, (suite(*each) for each in judged))
    if not all(outcome.met for _, _, outcomes in judged for outcome in outcomes):
        return _UNMET
    return UsageError.exit_code if refused else 0


def networks_of(local: Sequence[str]) -> list[IPv4Network | IPv6Network]:
    """Return the networks of --local. Raises UsageError."""
    try:
        return [ip_network(each, strict=False) for each in local]
    except ValueError as error:
        raise UsageError(f"--local: {error}", hint="an address or a network") from None


def is_recording(name: str) -> bool:
    """Whether a name is a directory. A capture is a file."""
    with as_invoker():
        return os.path.isdir(name)


def is_file(given: str) -> bool:
    """Whether a policy is given as a file, not as a text."""
    return given.endswith((".toml", ".json")) and "->" not in given


def _meaning(
    policy: Policy, profiles: Mapping[str, Sequence[str]], interval: float
) -> Iterator[str]:
    from probes.monitor.policy import resolve

    if policy.mode == "triggered":
        yield f"active when {_condition(policy.condition, interval)}"
        if policy.deactivate:
            yield f"until {_condition(policy.deactivate, interval)}"
        else:
            yield "until that does not hold"
        if policy.hold:
            yield f"for {policy.hold:g} s at least"
        if policy.cooldown:
            yield f"then not looked at for {policy.cooldown:g} s"
    else:
        yield "always active" if policy.mode == "permanent" else "active when an operator says so"
    if policy.suspects:
        yield f"an alarm names the flows of {policy.suspects}"
    names, traced = resolve(policy, profiles)
    of = f"packets of {' or '.join(policy.select)}" if policy.select else "all packets"
    if names:
        yield f"runs {', '.join(names)} on {of}"
    if traced:
        top = "top flow" if traced == 1 else f"{traced} top flows"
        yield f"traces the paths of the {top} of {of}"


def _condition(text: str, interval: float) -> str:
    from probes.monitor.condition import Condition
    from probes.monitor.condition.series import WindowSeries

    condition = Condition.stored(text)
    compared = condition.evaluate(WindowSeries()).comparisons
    units = dict.fromkeys(each.of.left.unit.joined(each.of.right.unit).label for each in compared)
    time = f"windows of {interval:g} s" if condition.span else f"a window of {interval:g} s"
    over = f", of up to {condition.span:g} s" if condition.span else ""
    return f"{condition.text} ({', '.join(units)}; in {time}{over})"


CONTROL_EXAMPLES = """\b
Examples:
  probedeck policy add 'ntp: rate(packets on sport:123) > 1k/s -> heavy_hitters on sport:123'
  probedeck policy replace policies.toml
  probedeck policy list
  probedeck policy activate ntp
  probedeck policy list --connect https://router1:8765 --token ~/.router1"""
_given = argument("given", "TEXT|FILE", "A policy, or a .toml or .json file of policies.")
_name = argument("name", "NAME", "The policy's name.")
_json = option("--json", "as_json", is_flag=True, help="Print JSON.")


@controls(policy, "add", epilog=CONTROL_EXAMPLES)
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
        say(f"{each.name}: added, {client.set_policy(each).state.label}")


@controls(policy, "replace", epilog=CONTROL_EXAMPLES)
@_given
def replace(client: Client, given: str) -> None:
    """Replace policies by others of the same names."""
    monitor = _monitor(client)
    policies = _policies(given, monitor)
    for each in policies:
        _check_known(each.name, [info.policy.name for info in monitor.policies])
    for each in policies:
        say(f"{each.name}: replaced, {client.set_policy(each).state.label}")


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


operations(policy)


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
