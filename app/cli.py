"""The command line: options, and errors as one line with the right exit code."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from app.outputs import FORMATS, VIEWS
from bpf import interface as interfaces
from bpf.attach import Hook
from bpf.errors import DeckError, UsageError
from probes.flow import FlowFilter

VERSION = "0.1.0"
INGRESS = {"xdp": Hook.XDP, "tc": Hook.TC_INGRESS}
EXIT_CODES = "Exit codes: 0 ok, 1 runtime, 2 usage, 3 expectation, 4 privilege or kernel."
# \b keeps the lines that follow as they are.
RUN_EXAMPLES = """\b
Examples:
  probedeck run -i eth0
  probedeck run -i eth0 --capture 'proto:tcp port:80,443 !net:10.0.0.0/8'
  probedeck run -i eth0 --headless -o /var/log/flows --duration 3600
  probedeck run -i eth0 --headless --views windows | head"""
LAB_EXAMPLES = """\b
Examples:
  probedeck lab
  probedeck lab --headless --duration 10 --format jsonl"""
DOCTOR_EXAMPLES = """\b
Example:
  probedeck doctor -i eth0"""

cli = typer.Typer(
    name="probedeck",
    epilog=EXIT_CODES,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Headless = Annotated[
    bool, typer.Option("--headless", help="Write tables instead of showing a console.")
]
Format = Annotated[
    str, typer.Option("--format", metavar="|".join(FORMATS), help="What tables are written as.")
]
Out = Annotated[
    str,
    typer.Option(
        "-o",
        "--out",
        metavar="DIR|-",
        help="Where tables go: a file each in DIR, appended to, or standard output.",
    ),
]
Interval = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long a window lasts, 0.01 to 300.")
]
Duration = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="When it ends by itself.", show_default="when told to"),
]
Ingress = Annotated[
    str,
    typer.Option(
        metavar="|".join(INGRESS),
        help="Where incoming packets are seen; tc takes other programs beside it.",
    ),
]
Capture = Annotated[
    str,
    typer.Option(
        metavar="FILTER",
        help="Which flows are counted: proto:, port:, sport:, dport:, net:, src:, dst:, ip:4 or "
        "ip:6; ! negates a term.",
        show_default="all",
    ),
]
Views = Annotated[
    str | None,
    typer.Option(
        metavar=",".join(VIEWS),
        help="Which tables are written.",
        show_default="all; flows on standard output",
    ),
]


@cli.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.")
    ] = False,
) -> None:
    """Live network monitoring with eBPF: a console, and the control plane behind it."""
    if show_version:
        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@cli.command(epilog=RUN_EXAMPLES)
def run(
    interface: Annotated[
        str, typer.Option("-i", "--interface", metavar="NAME", help="What is watched.")
    ],
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
    # Asked for now, so that a misspelled name leaves no tables behind.
    interfaces.find(interface)
    if headless:
        _headless(interface, out, format_name, views, interval, duration, ingress, capture)
    else:
        _console(interface, interval, duration, ingress, capture)


@cli.command(epilog=LAB_EXAMPLES)
def lab(
    headless: Headless = False,
    format_name: Format = "csv",
    out: Out = "-",
    interval: Interval = 1.0,
    duration: Duration = None,
    ingress: Ingress = "xdp",
    capture: Capture = "",
    views: Views = None,
    rate: Annotated[
        float,
        typer.Option(metavar="FACTOR", help="How busy it is, 0.1 to 10; 1 is a calm office."),
    ] = 1.0,
) -> None:
    """Watch a lab: a small network with traffic of its own.

    A client, six routers with a bottleneck, and a server, in namespaces: IPv4 and IPv6, TCP, UDP,
    DNS and ICMP. Leaving removes it all.
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


@cli.command(epilog=DOCTOR_EXAMPLES)
def doctor(
    interface: Annotated[
        str | None,
        typer.Option("-i", "--interface", metavar="NAME", help="Look at this one too."),
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

    every = ("flows",) if out == "-" else tuple(VIEWS)
    names = tuple(dict.fromkeys(views.split(","))) if views else every
    for name in names:
        if name not in VIEWS:
            raise UsageError(f"no view {name!r}", hint=f"there are {', '.join(VIEWS)}")
    options = headless.Options(
        interface=interface,
        interval=interval,
        ingress=INGRESS[ingress],
        capture=_parse(capture),
        duration=duration,
        target=out,
        format=format_name,
        views=names,
    )
    try:
        headless.run(options)
    except BrokenPipeError:
        # The reader of our output has left, as `head` does: an end like any other.
        _fall_silent()


def _parse(capture: str) -> FlowFilter:
    """Raises UsageError for what isn't a filter, or can't be one in the kernel."""
    parsed = FlowFilter.parse(capture)
    parsed.to_c()
    return parsed


def _console(
    interface: str, interval: float, duration: float | None, ingress: str, capture: str
) -> None:
    _need_terminal(f"probedeck run -i {interface} --headless")
    from app import console

    code = console.run(interface, interval, INGRESS[ingress], _parse(capture), duration)
    raise typer.Exit(code)


def _need_terminal(instead: str) -> None:
    # By number: sys.stdin and sys.stdout are None where they are closed.
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError("the console needs a terminal", hint=f"without one: {instead}")


def main() -> NoReturn:
    """Run the command line; a DeckError becomes one line on standard error."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = cli(prog_name="probedeck", standalone_mode=False)
        print(end="", flush=True)
    except DeckError as error:
        print(f"probedeck: {error}", file=sys.stderr)
        code = error.exit_code
    except BrokenPipeError:
        _fall_silent()
        code = 0
    except typer.TyperException as error:
        print(f"probedeck: {_with_help(error.format_message())}", file=sys.stderr)
        code = UsageError.exit_code
    sys.exit(code or 0)


def _fall_silent() -> None:
    """Write nothing more: Python would complain at exit about what it could not write."""
    for output in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)


def _with_help(message: str) -> str:
    # A question is what was meant, and says enough.
    return message if message.endswith("?") else f"{message.rstrip('.')}; see --help"
