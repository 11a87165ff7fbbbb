"""The command line: options, and errors as one line with the right exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, NoReturn

import typer

from app.outputs import FORMATS, VIEWS
from bpf.attach import Hook
from bpf.errors import DeckError, UsageError
from probes.flow import FlowFilter

VERSION = "0.1.0"
INGRESS = {"xdp": Hook.XDP, "tc": Hook.TC_INGRESS}
EXIT_CODES = "Exit codes: 0 ok, 1 runtime, 2 usage, 3 expectation, 4 privilege or kernel."

cli = typer.Typer(
    name="probedeck",
    help="Live network monitoring with eBPF: a console, and the control plane behind it.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Headless = Annotated[bool, typer.Option("--headless", help="No screen: write tables.")]
Format = Annotated[str, typer.Option("--format", help=f"Of tables: {' or '.join(FORMATS)}.")]
Out = Annotated[
    str, typer.Option("-o", "--out", metavar="DIR|-", help="Where tables go; - is standard output.")
]
Interval = Annotated[float, typer.Option(help="Seconds that a window lasts.")]
Duration = Annotated[float | None, typer.Option(help="Seconds until it ends by itself.")]
Ingress = Annotated[
    str, typer.Option(help="Where incoming packets are seen: xdp or tc (beside other programs).")
]
Capture = Annotated[
    str, typer.Option(help="Which flows are counted, such as 'proto:tcp port:80,443'.")
]
Views = Annotated[
    str | None,
    typer.Option(help=f"Tables, by comma: {', '.join(VIEWS)}. All; on standard output, flows."),
]


@cli.command()
def run(
    interface: Annotated[str, typer.Option("-i", "--interface", help="What is watched.")],
    headless: Headless = False,
    format_name: Format = "csv",
    out: Out = "-",
    interval: Interval = 1.0,
    duration: Duration = None,
    ingress: Ingress = "xdp",
    capture: Capture = "",
    views: Views = None,
) -> None:
    """Watch an interface, in the console or into tables."""
    _check(format_name, interval, duration, ingress)
    if headless:
        _headless(interface, out, format_name, views, interval, duration, ingress, capture)
    else:
        _console(interface, interval, duration, ingress, capture)


@cli.command()
def lab(
    headless: Headless = False,
    format_name: Format = "csv",
    out: Out = "-",
    interval: Interval = 1.0,
    duration: Duration = None,
    ingress: Ingress = "xdp",
    capture: Capture = "",
    views: Views = None,
    rate: Annotated[float, typer.Option(help="How busy its traffic is; 1 is a calm office.")] = 1.0,
) -> None:
    """Watch a small network of namespaces with traffic of its own; leaving removes it.

    A client, six routers with a bottleneck, and a server: IPv4 and IPv6, TCP, UDP, DNS and ICMP.
    """
    _check(format_name, interval, duration, ingress)
    if not headless:
        _need_terminal("probedeck lab --headless --duration 10")
    from app.lab import Lab

    with Lab(rate=rate) as network:
        network.enter()
        if headless:
            _headless(
                network.interface, out, format_name, views, interval, duration, ingress, capture
            )
        else:
            _console(network.interface, interval, duration, ingress, capture)


@cli.command()
def doctor(
    interface: Annotated[
        str | None, typer.Option("-i", "--interface", help="Look at this one too.")
    ] = None,
) -> None:
    """Name what is missing for monitoring, each with its remedy."""
    from app import doctor as examination

    raise typer.Exit(examination.run(interface))


@cli.command()
def version() -> None:
    """Print the version."""
    print(f"probedeck {VERSION}")


@cli.command()
def test() -> None:
    """Run the test suite; arguments go to pytest. Only through the launcher ./probedeck."""
    raise UsageError("the tests are run by the launcher", hint="./probedeck test")


def _check(format_name: str, interval: float, duration: float | None, ingress: str) -> None:
    if format_name not in FORMATS:
        raise UsageError(f"no format {format_name!r}", hint=f"there are {', '.join(FORMATS)}")
    if ingress not in INGRESS:
        raise UsageError(f"--ingress {ingress!r} is neither xdp nor tc")
    # Packet counts of a window are 32 bits wide: at 10 Mpps that is seven minutes.
    if not 0.01 <= interval <= 300:
        raise UsageError(f"--interval {interval:g} is not between 0.01 and 300 seconds")
    if duration is not None and not duration > 0:
        raise UsageError(f"--duration {duration:g} is not more than 0")


def _headless(
    interface: str, out: str, format_name: str, views: str | None, interval: float,
    duration: float | None, ingress: str, capture: str,
) -> None:  # fmt: skip
    from app import headless

    names = tuple(views.split(",")) if views else ("flows",) if out == "-" else tuple(VIEWS)
    for name in names:
        if name not in VIEWS:
            raise UsageError(f"no view {name!r}", hint=f"there are {', '.join(VIEWS)}")
    headless.run(
        headless.Options(
            interface=interface,
            interval=interval,
            ingress=INGRESS[ingress],
            capture=FlowFilter.parse(capture),
            duration=duration,
            target=out,
            format=format_name,
            views=names,
        )
    )


def _console(
    interface: str, interval: float, duration: float | None, ingress: str, capture: str
) -> None:
    _need_terminal(f"probedeck run -i {interface} --headless")
    from app import console

    code = console.run(interface, interval, INGRESS[ingress], FlowFilter.parse(capture), duration)
    raise typer.Exit(code)


def _need_terminal(instead: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("the console needs a terminal", hint=f"without one: {instead}")


def main() -> NoReturn:
    """Run the command line; a DeckError becomes one line on standard error."""
    try:
        code = cli(standalone_mode=False)
    except DeckError as error:
        print(f"probedeck: {error}", file=sys.stderr)
        code = error.exit_code
    except typer.Abort:
        code = 130
    except BrokenPipeError:
        # The reader of our standard output has left; Python would complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except typer.TyperException as error:
        print(f"probedeck: {error.format_message()}; see --help", file=sys.stderr)
        code = 2
    sys.exit(code or 0)
