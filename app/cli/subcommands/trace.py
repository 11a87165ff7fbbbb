"""`probedeck trace` and `explain`: paths as tables, and one conversation in sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise

import click

from app.cli.command import GroupedCommand, argument, option
from app.cli.decorator import takes
from app.outputs.networks import Describe
from app.run.child_process import ChildProcess
from app.run.options import OUTPUT, Options
from app.run.spec import RunSpec
from bpf.attach import interface as interfaces
from bpf.errors import UsageError
from probes.config.options import settings_of
from probes.flow.options import GENERAL, INGRESS
from probes.path.options import MAX_DESTINATIONS, PATHS, OwnFlow, OwnProtocol, PathOptions

EXAMPLES = """\b
Examples:
  probedeck trace -i eth0 example.org
  probedeck trace -i eth0 example.org --without-traffic --duration 10
  probedeck trace -i eth0 192.0.2.1 2001:db8::1 -o paths --duration 60
  probedeck trace -i eth0 192.0.2.1 --report --duration 30
  probedeck trace -i eth0 192.0.2.1 --views paths --format jsonl | jq .
  probedeck trace -i eth0 192.0.2.1 -o paths -- iperf3 -c 192.0.2.1 -t 10"""
_STDERR = 2
_OWN = "--without-traffic"
_IS_FLOW = re.compile(f"({'|'.join(OwnProtocol)})(:|$)").match
_REPORT = "--report"
_REPORTS = ("text", "markdown", "json")
_NAMES_S = 3.0
"""Longest wait for names before a report."""
_TABLES = ("hops", "paths", "traces", "windows", "events")


class TraceCommand(GroupedCommand):
    """A command with an optional program after `--`, which becomes `obj` of its context."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :]
        if args[at:] == ["--"]:
            raise UsageError("no program after --")
        # The word after --report may be a destination.
        ctx.meta[_REPORT] = dict(pairwise(args[:at])).get(_REPORT)
        given = _with_value(args[:at], _REPORT, _REPORTS.__contains__, _REPORTS[0])
        given = _with_value(given, _OWN, _IS_FLOW, OwnProtocol.ICMP)
        return super().parse_args(ctx, given)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM [ARGS]...]"]


def _with_value(
    arguments: list[str], name: str, is_value: Callable[[str], object], usual: str
) -> list[str]:
    """Give an option its value, or `usual`: the next argument may be a destination."""
    if name not in arguments:
        return arguments
    at = arguments.index(name)
    named = any(is_value(each) for each in arguments[at + 1 : at + 2])
    chosen = arguments[at + 1] if named else usual
    return [*arguments[:at], f"{name}={chosen}", *arguments[at + 1 + named :]]


@click.command(cls=TraceCommand, epilog=EXAMPLES)
@argument(
    "destinations", "DEST...", f"Addresses or host names, {MAX_DESTINATIONS} at most.", nargs=-1,
    required=True,
)  # fmt: skip
@option(
    "-i", "--interface", metavar="NAME", default="", group=GENERAL,
    usual="the default route's", help="Interface that the flows leave by.",
)  # fmt: skip
@option(
    _OWN, metavar="[icmp|udp|tcp][:PORT]", group=GENERAL, usual="icmp if no protocol is given",
    help="Send a flow to each destination while no application sends there.",
)  # fmt: skip
@option(
    "--ingress", metavar="|".join(INGRESS), default="auto", usual="auto", group=PATHS,
    help="Hook that sees the answers; auto chooses by the driver.",
)  # fmt: skip
@option(
    "--views", metavar="NAME,NAME...", group=OUTPUT,
    usual="all into a DIR; hops to standard output", help=f"Tables to write: {', '.join(_TABLES)}.",
)  # fmt: skip
@option(
    "--names", is_flag=True, group=OUTPUT,
    help="Add names of routers by reverse DNS, which sends queries.",
)  # fmt: skip
@option(
    "--report", metavar=f"[{'|'.join(_REPORTS)}]", group=OUTPUT,
    help="Write a report to standard output at the end: each hop's loss, times and findings. It is "
    "text if no format is named.",
)  # fmt: skip
@takes(
    PathOptions,
    Options,
    only=("format", "out", "duration", "networks", *settings_of(PathOptions)),
    bare=True,
)
def trace(
    options: Options, paths: PathOptions, destinations: tuple[str, ...], interface: str,
    without_traffic: str, ingress: str, views: str, report: str, names: bool,
) -> int:  # fmt: skip
    """Trace the paths of flows, hop by hop, into tables.

    Packets of applications cause the probes: without packets to a destination there are no probes,
    unless --without-traffic sends some.

    If a PROGRAM is given, the trace ends with it and has its exit code (128 + n: signal n, 127: no
    such program, 126: not executable). If tables or a report go to standard output, the program's
    output goes to standard error. With --report, tables are only written into a DIR.
    """
    # Imported here: other commands start without numpy.
    from app.resolve import check_routes, default_interface
    from app.run import headless
    from app.run.report import ReportFormat, ReportWriter

    options = replace(options, flow=replace(options.flow, ingress=ingress))
    options.check()
    paths.check()
    describe, look_up = described_by(options, names=names)
    own_flow = OwnFlow.parse(without_traffic) if without_traffic else None
    if report and report not in _REPORTS:
        raise UsageError(f"--report {report!r} is not {', '.join(_REPORTS)}")
    output = replace(options, views=views).output_spec({}, _TABLES, "hops")
    to_stdout = options.out == "-"
    if report and to_stdout:
        if views:
            raise UsageError("the report takes standard output", hint="give tables a DIR by -o")
        output = replace(output, views=())
    program = None
    if arguments := click.get_current_context().obj:
        program = ChildProcess(arguments, stdout=_STDERR if report or to_stdout else None)
    # Checked before DNS queries.
    interface = interface or default_interface()
    interfaces.find(interface)
    found = [address for name in destinations for address in _resolved(name)]
    check_routes(found)
    spec = RunSpec(
        interface=interface,
        options=replace(options, only=True),
        trace=tuple(dict.fromkeys(found)),
        own_flow=own_flow,
        paths=paths,
        describe=describe,
    )
    spec.check()
    writer = ReportWriter(ReportFormat(report), describe, look_up) if report else None
    headless.run(spec, output, program, writer)
    return program.code if program else 0


def described_by(options: Options, *, names: bool) -> tuple[Describe, Callable[..., None]]:
    """Return the description of routers, and a wait for names of addresses. Raises UsageError."""
    network = options.describe()
    if not names:
        return network, lambda addresses: None
    # Imported here: the module is the console's.
    from app.console.host_names import Names
    from app.outputs.networks import describing

    known = Names(lambda: None)
    return describing(network, known.name), partial(known.look_up, seconds=_NAMES_S)


def _resolved(name: str) -> tuple[str, ...]:
    """Return the addresses of a destination. If it is a host name, print them.

    Raises UsageError.
    """
    # Imported here: other commands start without numpy.
    from app.resolve import addresses
    from app.run.headless import say

    try:
        found = addresses(name)
    except UsageError as error:
        if name != click.get_current_context().meta[_REPORT]:
            raise
        what = f"--report {name!r} is neither {', '.join(_REPORTS)} nor a destination"
        raise UsageError(what, hint=str(error)) from None
    if found != (name,):
        say(f"{name} is {', '.join(found)}")
    return found


EXPLAIN_EXAMPLES = """\b
Examples:
  probedeck explain 'dport:443 proc:nginx'
  probedeck explain -i eth0 'host:192.0.2.1' --for 30
  probedeck explain limit:queue --json | jq .where"""
_WINDOW_S = 0.5


@click.command(cls=GroupedCommand, epilog=EXPLAIN_EXAMPLES)
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
        options=replace(options, flow=replace(options.flow, interval=_WINDOW_S)),
        describe=options.describe(),
    )
    spec.check()
    found = explanation.run(spec, filter, seconds)
    print(json.dumps(asdict(found), indent=2) if as_json else "\n".join(lines(found)))
