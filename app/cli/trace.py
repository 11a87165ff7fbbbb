"""`probedeck trace`: paths to destinations into tables, also for as long as a program runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from app.cli.decorator import takes
from app.cli.options import INGRESS, Options
from app.run.child_process import Program
from app.run.output_spec import Target
from app.run.spec import Watch
from bpf.attach import interface as interfaces
from bpf.errors import UsageError
from probes.path.options import Guard, Order, PathOptions, Per

EXAMPLES = """\b
Examples:
  probedeck trace -i eth0 example.org
  probedeck trace -i eth0 192.0.2.1 2001:db8::1 -o paths --duration 60
  probedeck trace -i eth0 192.0.2.1 --views paths --format jsonl | jq .
  probedeck trace -i eth0 192.0.2.1 -o paths -- iperf3 -c 192.0.2.1 -t 10"""
_STDERR = 2
_DEFAULT = PathOptions()
_TABLES = ("hops", "paths", "windows", "events")


class Command(TyperCommand):
    """A command after whose arguments `--` may come, and a program: its context's `obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.obj = args[at + 1 :]
        if args[at:] == ["--"]:
            raise UsageError("no program after --")
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PROGRAM [ARGS]...]"]


@takes(Options, only=("format", "out", "duration"))
def trace(
    context: typer.Context,
    options: Options,
    destinations: Annotated[
        list[str],
        typer.Argument(metavar="DEST", help="Addresses, or names: all addresses that they have."),
    ],
    interface: Annotated[
        str, typer.Option("-i", "--interface", metavar="NAME", help="Where the flows go out.")
    ],
    rate: Annotated[
        float, typer.Option(metavar="N", help="Probes per second, a maximum: 0.1 to 100000.")
    ] = _DEFAULT.rate,
    per: Annotated[
        Per, typer.Option(help="What that is of: each hop, or all hops of a destination.")
    ] = _DEFAULT.per,
    burst: Annotated[
        int, typer.Option(metavar="N", help="Probes that one packet may cause, 1 to 8.")
    ] = _DEFAULT.burst,
    order: Annotated[
        Order, typer.Option(help="Which leaves first: the probe, or the application's packet.")
    ] = _DEFAULT.order,
    guard: Annotated[
        Guard,
        typer.Option(help="What is wrong about a probe, so that no destination takes it for real."),
    ] = _DEFAULT.guard,
    pass_answers: Annotated[
        bool, typer.Option("--pass-answers", help="Let the host see the answers to probes, too.")
    ] = _DEFAULT.pass_answers,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="When a probe without an answer is lost: 0.05 to 60."),
    ] = _DEFAULT.timeout,
    max_hops: Annotated[
        int, typer.Option(metavar="N", help="The highest TTL or hop limit, 1 to 30.")
    ] = _DEFAULT.max_hops,
    ingress: Annotated[
        str,
        typer.Option(
            metavar="|".join(INGRESS), help="Where answers are seen; auto: what suits the driver."
        ),
    ] = "auto",
    views: Annotated[
        str,
        typer.Option(
            metavar=",".join(_TABLES),
            help="Which tables are written.",
            show_default="all; hops on standard output",
        ),
    ] = "",
) -> None:
    """Trace the paths of flows, hop by hop, into tables.

    The packets of applications cause the probes: where nothing is sent there are none. With a
    program it ends when that ends, and with the same exit code (128 + n: by signal n). The
    program's standard output then goes to standard error, where tables go to standard output.
    """
    # numpy and the probes, which other commands begin without.
    from app.resolve import addresses
    from app.run import headless

    options.check()
    paths = PathOptions(
        rate, per, burst, order, guard, pass_answers, timeout=timeout, max_hops=max_hops
    )
    paths.check()
    if ingress not in INGRESS:
        raise UsageError(f"--ingress {ingress!r} is not {', '.join(INGRESS)}")
    target = Target.of(options.out, options.format, views, _TABLES, "hops")
    # Before names are asked for.
    interfaces.find(interface)
    found = [address for name in destinations for address in addresses(name)]
    watch = Watch(
        interface=interface,
        interval=options.interval,
        ingress=INGRESS[ingress],
        capture="",
        duration=options.duration,
        flows=False,
        trace=tuple(dict.fromkeys(found)),
        paths=paths,
    )
    program = None
    if context.obj:
        program = Program(context.obj, stdout=_STDERR if options.out == "-" else None)
    headless.run(watch, target, program)
    if program:
        raise typer.Exit(program.code)
