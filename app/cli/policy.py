"""`probedeck policy`: what policies of the monitor mean, without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

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

policy_cli = typer.Typer(
    name="policy",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@policy_cli.callback(epilog=EXAMPLES)
def policy() -> None:
    """Look at policies of the monitor before they run."""


@policy_cli.command(epilog=EXAMPLES)
def check(
    given: Annotated[
        str, typer.Argument(metavar="TEXT|FILE", help="A policy, or a .toml or .json of some.")
    ],
    probe: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="An application's configuration; may be repeated."),
    ] = None,
) -> None:
    """Say what each policy means, in one line."""
    from probes.config.model import load

    is_file = given.endswith((".toml", ".json")) and "->" not in given
    probes = [load(path) for path in probe or ()]
    path, texts = (given, []) if is_file else ("", [given])
    policies, said = policies_of(path, texts, probes)
    interval = said.get("interval", MonitorOptions().interval)
    for policy in policies.policies:
        print(f"{policy.name}: {'; '.join(_meaning(policy, policies.profiles, interval))}")


def _meaning(
    policy: Policy, profiles: Mapping[str, Sequence[str]], interval: float
) -> Iterator[str]:
    """When it is active, and what runs then."""
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
    """With what its quantities are counted in, and over which time."""
    from probes.monitor.condition import Condition
    from probes.monitor.condition.series import WindowSeries

    condition = Condition.parse(text)
    compared = condition.evaluate(WindowSeries()).comparisons
    units = dict.fromkeys(each.of.left.unit.joined(each.of.right.unit).label for each in compared)
    time = f"windows of {interval:g} s" if condition.span else f"a window of {interval:g} s"
    over = f", of up to {condition.span:g} s" if condition.span else ""
    return f"{condition.text} ({', '.join(units)}; in {time}{over})"
