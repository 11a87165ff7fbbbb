"""`probedeck policy`: check policies of the monitor without running them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from app.cli.command import CommandGroup, argument, option
from app.run.monitor import policies_of
from probes.monitor.options import MonitorOptions

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

EXAMPLES = """\b
Examples:
  probedeck policy check 'flood: flows > 500 -> heavy_hitters'
  probedeck policy check 'dns: udp_packets / packets > 80% -> dns on port:53'
  probedeck policy check 'all: flows > 5 * baseline(60s) hold 5s -> trace:3'
  probedeck policy check policies.toml"""

policy = CommandGroup(
    "policy", help="Check policies of the monitor before they run.", epilog=EXAMPLES
)


@policy.command(epilog=EXAMPLES)
@argument("given", "TEXT|FILE", "A policy, or a .toml or .json file of policies.")
@option("--probe", multiple=True, metavar="FILE", help="An application's configuration.")
def check(given: str, probe: tuple[str, ...]) -> None:
    """Explain each policy in one line."""
    from probes.config.model import load

    is_file = given.endswith((".toml", ".json")) and "->" not in given
    probes = [load(path) for path in probe]
    path, texts = (given, []) if is_file else ("", [given])
    policies, said = policies_of(path, texts, probes)
    interval = said.get("interval", MonitorOptions().interval)
    for each in policies.policies:
        print(f"{each.name}: {'; '.join(_meaning(each, policies.profiles, interval))}")


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

    condition = Condition.parse(text)
    compared = condition.evaluate(WindowSeries()).comparisons
    units = dict.fromkeys(each.of.left.unit.joined(each.of.right.unit).label for each in compared)
    time = f"windows of {interval:g} s" if condition.span else f"a window of {interval:g} s"
    over = f", of up to {condition.span:g} s" if condition.span else ""
    return f"{condition.text} ({', '.join(units)}; in {time}{over})"
