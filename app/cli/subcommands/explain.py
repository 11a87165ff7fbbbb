"""`probedeck explain`: the owner of a flow, its limit, and the hop where its packets wait."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import click

from app.cli.command import GroupedCommand, argument, option
from app.cli.decorator import takes
from app.run.options import GENERAL, OUTPUT, Options
from bpf.errors import UsageError

EXAMPLES = """\b
Examples:
  probedeck explain 'dport:443 proc:nginx'
  probedeck explain -i eth0 'host:192.0.2.1' --for 30
  probedeck explain limit:queue --json | jq .where"""
_WINDOW_S = 0.5


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@argument("filter", "FILTER", "Flows to choose from; the largest conversation is explained.")
@option(
    "-i", "--interface", metavar="NAME", default="", group=GENERAL,
    usual="the default route's", help="Interface that the flow passes.",
)  # fmt: skip
@option(
    "--for", "seconds", metavar="SECONDS", default=None, group=GENERAL,
    usual="until the numbers are known", help="Watch the chosen flow so long.",
)  # fmt: skip
@option("--json", "as_json", is_flag=True, group=OUTPUT, help="Print a JSON object.")
@takes(Options, only=("networks",))
def explain(
    options: Options, filter: str, interface: str, seconds: float | None,  # noqa: A002
    as_json: bool,
) -> None:  # fmt: skip
    """Explain a flow: its owner, its limit, and its queue.

    probedeck watches the interface, chooses the conversation with the most bytes of those that pass
    FILTER, and traces its path. Some seconds later it prints one page. The first line is the
    answer.
    """
    if seconds is not None and seconds <= 0:
        raise UsageError(f"--for {seconds:g} is not more than 0 seconds")
    # Imported here: other commands start without numpy.
    from app import resolve
    from app.explain import lines
    from app.run import explanation
    from app.run.spec import RunSpec

    spec = RunSpec(
        interface=interface or resolve.default_interface(),
        options=replace(options, interval=_WINDOW_S),
        describe=options.describe(),
    )
    spec.check()
    found = explanation.run(spec, filter, seconds)
    print(json.dumps(asdict(found), indent=2) if as_json else "\n".join(lines(found)))
