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
from app.run.spec import REPORTS, TRACE_TABLES, ExplainOptions, RunSpec, TraceOptions
from bpf.attach import interface as interfaces
from bpf.errors import UsageError
from probes.config.options import settings_of
from probes.path.options import MAX_DESTINATIONS, OwnFlow, OwnProtocol, PathOptions

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
_NAMES_S = 3.0
"""Longest wait for names before a report."""


_OF_TRACE = tuple({**settings_of(TraceOptions), **settings_of(PathOptions)})


class TraceCommand(GroupedCommand):
    """A command with an optional program after `--`, which becomes `obj` of its context."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :]
        if args[at:] == ["--"]:
            raise UsageError("no program after --")
        # The word after --report may be a destination.
        ctx.meta[_REPORT] = dict(pairwise(args[:at])).get(_REPORT)
        given = _with_value(args[:at], _REPORT, REPORTS.__contains__, REPORTS[0])
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
@takes(
    TraceOptions,
    PathOptions,
    Options,
    only=(*_OF_TRACE, "format", "out", "duration", "networks"),
    bare=True,
)
def trace(
    asked: TraceOptions, options: Options, paths: PathOptions, destinations: tuple[str, ...]
) -> int:
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

    options.check()
    paths.check()
    describe, look_up = described_by(options, names=asked.names)
    own_flow = OwnFlow.parse(asked.without_traffic) if asked.without_traffic else None
    report = asked.report
    if report and report not in REPORTS:
        raise UsageError(f"--report {report!r} is not {', '.join(REPORTS)}")
    output = options.output_spec({}, TRACE_TABLES, "hops")
    to_stdout = options.out == "-"
    if report and to_stdout:
        if asked.views:
            raise UsageError("the report takes standard output", hint="give tables a DIR by -o")
        output = replace(output, views=())
    program = None
    if arguments := click.get_current_context().obj:
        program = ChildProcess(arguments, stdout=_STDERR if report or to_stdout else None)
    # Checked before DNS queries.
    interface = asked.interface or default_interface()
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
        what = f"--report {name!r} is neither {', '.join(REPORTS)} nor a destination"
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
@takes(ExplainOptions, Options, only=("interface", "seconds", "networks"))
@option("--json", "as_json", is_flag=True, group=OUTPUT, help="Print a JSON object.")
def explain(
    asked: ExplainOptions, options: Options, filter: str, as_json: bool  # noqa: A002
) -> None:  # fmt: skip
    """Explain a flow: its owner, its limit, and its queue.

    probedeck watches the interface, chooses the conversation with the most bytes of those that pass
    FILTER, and traces its path. Some seconds later it prints one page. The first line is the
    answer.
    """
    if asked.seconds is not None and asked.seconds <= 0:
        raise UsageError(f"--for {asked.seconds:g} is not more than 0 seconds")
    # Imported here: other commands start without numpy.
    from app import resolve
    from app.explain import lines
    from app.run import explanation

    spec = RunSpec(
        interface=asked.interface or resolve.default_interface(),
        options=replace(options, flow=replace(options.flow, interval=_WINDOW_S)),
        describe=options.describe(),
    )
    spec.check()
    found = explanation.run(spec, filter, asked.seconds)
    print(json.dumps(asdict(found), indent=2) if as_json else "\n".join(lines(found)))
