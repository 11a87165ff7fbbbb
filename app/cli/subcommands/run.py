"""`probedeck run`, `lab`, `serve`, `tour`, `console` and `fleet`: the commands that monitor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from app import VERSION
from app.api.sockets import Listening
from app.cli.command import GroupedCommand, argument, controller_options, option
from app.cli.decorator import takes
from app.cli.subcommands.record import ONE_RUN
from app.config.model import CONSOLE, Settings, Ui
from app.lab import LabOptions
from app.run.options import PLAIN_HELP, Options, OutputSpec
from app.run.spec import Beside, run_spec
from app.tape.options import NOTHING, Startup, TapeOptions
from bpf.errors import UsageError
from probes.config.options import settings_of
from probes.flow.options import GENERAL
from probes.path.options import PathOptions

# After \b, click keeps line breaks.
RUN_EXAMPLES = """\b
Examples:
  probedeck run
  probedeck run -i eth0,eth1
  probedeck run -i eth0 --capture 'proto:tcp port:80,443 !net:10.0.0.0/8'
  probedeck run -i eth0 --headless -o /var/log/flows --duration 3600
  probedeck run -i eth0 --headless --views windows | head
  probedeck run -i eth0 --probe examples/sizes.toml --headless -o sizes
  probedeck run -i eth0 --policy 'flood: flows > 500 -> heavy_hitters'
  probedeck run -i eth0 --monitor --only --headless --views metrics"""
LAB_EXAMPLES = """\b
Examples:
  probedeck lab
  probedeck lab --headless --duration 10 --format jsonl
  probedeck lab --replay attack.pcap --policies examples/policies.toml"""
CONSOLE_EXAMPLES = """\b
Examples:
  probedeck console
  probedeck console --connect https://router1:8765 --token ~/.router1"""
REPLAY_EXAMPLES = """\b
Examples:
  probedeck replay /var/lib/probedeck/record
  probedeck replay /var/lib/probedeck/record --at 03:12
  probedeck replay web1/ web2/ db1/ --at 03:12"""
FLEET_EXAMPLES = """\b
Examples:
  probedeck fleet hosts.toml
  probedeck fleet hosts.toml --exec 'host.choose site:ams'

\b
hosts.toml names each host, its controller's address, and labels to choose it by:
  [[hosts]]
  name = "web1"
  url = "https://web1:8765"
  token = "web1.token"
  labels = { site = "ams" }"""
TOUR_PROBE = Path(__file__).parents[2] / "library" / "packet-counter.toml"
TOUR_POLICY = "busy: packets > 20 hold 20s -> accounting"


@click.command(cls=GroupedCommand, epilog=RUN_EXAMPLES)
@takes(Options, Ui, TapeOptions, PathOptions)
def run(options: Options, paths: PathOptions, settings: Settings, playing: TapeOptions) -> int:
    """Monitor interfaces, in the console or into tables.

    Each flag has an opposite, which overrides the configuration file: --no-headless, --names.
    """
    which = f" -i {options.interface}" if options.interface else ""
    instead = f"probedeck run{which} --headless"
    startup = playing.startup(settings, shown=not options.headless)
    with namespace(options) as listen:
        return _start(options, paths, settings, instead, startup, listen=listen)


_HEADLESS = option(
    "--headless", is_flag=True, group=CONSOLE, help="Play a tape without showing the console."
)
_OF_LAB = tuple(
    {n for of in (LabOptions, Options, Ui, TapeOptions, PathOptions) for n in settings_of(of)}
    - {"interface", "netns"}
)
"""The lab has its own interface and namespaces."""


@click.command(cls=GroupedCommand, epilog=LAB_EXAMPLES)
@takes(LabOptions, Options, Ui, TapeOptions, PathOptions, only=_OF_LAB)
def lab(
    given: LabOptions,
    options: Options,
    paths: PathOptions,
    settings: Settings,
    playing: TapeOptions,
) -> int:
    """Monitor a lab: a small network with generated traffic.

    A client, six routers with a bottleneck, and a server, in namespaces: IPv4 and IPv6, TCP, UDP,
    DNS and ICMP. The end of the run removes it.
    """
    from app.lab.netns import host_listener
    from app.lab.network import Lab
    from app.lab.plan import LabPlan
    from app.lab.replay import MAX_GAP, Replay, speed_of

    # Checked before the lab is built; its interface does not exist yet.
    options.check(settings.filters)
    startup = playing.startup(settings, shown=not options.headless)
    for name, asked in (("--speed", given.speed), ("--max-gap", given.max_gap is not None)):
        if asked and not given.replay:
            raise UsageError(f"{name} without a capture", hint="give --replay FILE")
    capture, plan = None, LabPlan()
    if given.replay:
        # Conditions of policies compare the capture with the time before it.
        delay = min(2 * options.flow.interval, 2.0)
        gap = MAX_GAP if given.max_gap is None else given.max_gap
        capture = Replay(given.replay, speed_of(given.speed or "1"), delay=delay, max_gap=gap)
        plan = LabPlan(mtu=capture.mtu())
    instead = "probedeck lab --headless --duration 10"
    if not (is_plain(options.plain, options.headless, startup) or options.headless):
        need_terminal(instead)
    rate = given.traffic
    traffic = rate is not None or not given.replay
    with (
        Lab(plan, rate=1.0 if rate is None else rate, traffic=traffic) as network,
        host_listener() as listen,
    ):
        network.enter()
        if capture:
            # Packets of the start must not be measured.
            network.settle()
        beside = partial(capture.running, network.replay) if capture else network.watched
        options = replace(options, interface=network.interface)
        return _start(options, paths, settings, instead, startup, beside, listen=listen)


@click.command(cls=GroupedCommand)
@takes(Ui)
def tour(settings: Settings) -> int:
    """Learn the console in five minutes, on a lab."""
    from app.lab.network import Lab

    need_terminal("probedeck man")
    with Lab() as network:
        network.enter()
        options = Options(
            network.interface, probe=[str(TOUR_PROBE)], policy=[TOUR_POLICY], no_names=True
        )
        return _start(options, PathOptions(), settings, "probedeck man", tour=True)


@click.command(cls=GroupedCommand, epilog=CONSOLE_EXAMPLES)
@controller_options
@_HEADLESS
@option("--plain", is_flag=True, help=PLAIN_HELP)
@takes(Ui, TapeOptions)
def console(
    settings: Settings, playing: TapeOptions, url: str, token: str, ca: str, headless: bool,
    plain: bool,
) -> int:  # fmt: skip
    """Open a console on a running controller, by its API."""
    startup = playing.startup(settings, shown=not headless)
    as_lines = is_plain(plain, headless, startup)
    _check_tape(headless, startup)
    if not (as_lines or headless):
        need_terminal("probedeck probe list")
    from app.api.address import Remote
    from app.api.client import RemoteController

    remote = RemoteController(Remote(url, token, ca), screen=True, few=settings.ui.low_bandwidth)
    if as_lines:
        from app.console.plain import entry as lines

        _explain_lines(plain)
        lines.connect(remote, url)
        return 0
    from app.console import entry

    return entry.connect(remote, url, settings, startup)


@click.command(cls=GroupedCommand, epilog=REPLAY_EXAMPLES)
@argument(
    "directories", "DIR...", "Directories of --record; several hosts are one fleet.",
    nargs=-1, required=True,
)  # fmt: skip
@option(
    "--at",
    metavar="TIME",
    group=GENERAL,
    usual="its end",
    help="Begin at this time: 03:12, 2026-01-31T03:12, or how long before the end, 5m.",
)
@ONE_RUN
@_HEADLESS
@takes(Ui, TapeOptions)
def replay(
    settings: Settings, playing: TapeOptions, directories: tuple[str, ...], at: str,
    one_run: str, headless: bool,
) -> int:  # fmt: skip
    """Open the console on recordings. Recordings of several hosts are a fleet.

    It needs no privileges. [ and ] step through windows, { and } through minutes, space plays
    on, and :time.go TIME goes to a time.
    """
    startup = playing.startup(settings, shown=not headless)
    _check_tape(headless, startup)
    if not headless:
        need_terminal("probedeck record export DIR")
    from app.console import entry

    if one_run and len(directories) > 1:
        raise UsageError("--run is about one recording", hint="name one DIR")
    return entry.replay(directories, at, settings, startup, run=one_run)


@click.command(cls=GroupedCommand, epilog=FLEET_EXAMPLES)
@argument("file", "FILE", "The hosts, in TOML.")
@_HEADLESS
@takes(Ui, TapeOptions)
def fleet(settings: Settings, playing: TapeOptions, file: str, headless: bool) -> int:
    """Open a console on many hosts, by their APIs.

    Screen 7 lists the hosts; the other screens show the chosen ones.
    """
    startup = playing.startup(settings, shown=not headless)
    _check_tape(headless, startup)
    from app.fleet.hosts import load

    hosts = load(file)
    if not headless:
        need_terminal("probedeck probe list --connect URL")
    from app.console import entry

    return entry.fleet(hosts, settings, startup)


@contextmanager
def namespace(options: Options) -> Iterator[Callable[[str], Listening] | None]:
    """Be in the network namespace of --netns for the block. Raises UsageError or KernelError.

    Yields a function by which the API listens in the present namespace; None if that stays.
    """
    if options.netns in ("", "all"):
        yield None
        return
    from app.lab.netns import host_listener
    from bpf.attach.spaces import inside

    with host_listener() as listen, inside(options.netns):
        yield listen


def _start(
    options: Options, paths: PathOptions, settings: Settings, instead: str,
    startup: Startup = NOTHING, beside: Beside | None = None, *, tour: bool = False,
    listen: Callable[[str], Listening] | None = None,
) -> int:  # fmt: skip
    """Run headless or in the console. `instead` is the hint for runs that lack a terminal.
    `listen` opens the API's TCP socket."""
    options = replace(options, cpu=options.usual_cpu)
    options.check(settings.filters)
    paths.check()
    spec = run_spec(options, VERSION, paths, is_shown=not (options.headless or tour))
    outputs = (*settings.outputs, *spec.outputs)
    spec = replace(spec, beside=beside, tour=tour, outputs=outputs)
    if spec.api is not None and listen is not None:
        spec = replace(spec, api=replace(spec.api, opened=listen))
    as_lines = not tour and is_plain(options.plain, options.headless, startup)
    output = options.output_spec(settings.filters) if options.headless else None
    if output is not None and output.needs_owners:
        spec = replace(spec, switches=tuple({*spec.switches, "sockets"}))
    if output is not None and startup.tape is None:
        from app.run import headless

        headless.run(spec, output)
        return 0
    if as_lines:
        from app.console.plain import entry as plain

        _explain_lines(options.plain)
        plain.run(spec)
        return 0
    if output is None:
        need_terminal(instead)
    from app.console import entry

    written = output if output is not None and output.out != "-" else None
    return entry.run(spec, settings, startup, written)


def is_plain(asked: bool, headless: bool, startup: Startup) -> bool:
    """Whether the run prints lines: with --plain, and on a dumb terminal.

    Raises UsageError if other options contradict --plain.
    """
    if asked:
        for name, given in (("--headless", headless), ("--tape", startup.tape)):
            if given:
                raise UsageError(f"--plain and {name} exclude each other", hint="give one of them")
        return True
    at_terminal = os.isatty(0) and os.isatty(1)
    dumb = at_terminal and os.environ.get("TERM") == "dumb"
    return dumb and not headless and startup.tape is None


def _explain_lines(asked: bool) -> None:
    if not asked:
        print("probedeck: TERM is dumb: changes are lines, as with --plain", file=sys.stderr)


def _check_tape(headless: bool, startup: Startup) -> None:
    if headless and startup.tape is None:
        raise UsageError("--headless needs --tape or --exec here")


def need_terminal(instead: str, ends: Sequence[int] = (0, 1)) -> None:
    """Raise UsageError if a descriptor is no terminal. `instead` is the hint."""
    # sys.stdin and sys.stdout are None if they are closed.
    if not all(map(os.isatty, ends)):
        raise UsageError("the console needs a terminal", hint=f"without one: {instead}")


SERVE_EXAMPLES = """\b
Examples:
  probedeck serve
  probedeck serve -i eth0 --api-group probedeck --policies /etc/probedeck/policies.toml
  probedeck console"""

_OF_SCREENS = {"headless", "plain", "api", "no_names"}
_OF_SERVE = tuple({*settings_of(Options), *settings_of(PathOptions)} - _OF_SCREENS)


@click.command(cls=GroupedCommand, epilog=SERVE_EXAMPLES)
@takes(Options, PathOptions, only=_OF_SERVE)
def serve(options: Options, paths: PathOptions, settings: Settings) -> None:
    """Run the controller as a service, for consoles that connect.

    The API listens on a Unix socket. Events are lines on standard error, with a priority where the
    journal reads them. Tables are written only into the DIR of -o. Under systemd, the unit may
    have Type=notify and WatchdogSec=.
    """
    # Imported here: other commands start without numpy.
    from app.run import headless

    options = replace(options, cpu=options.usual_cpu)
    options = replace(options, headless=True, api=True)
    if is_unasked := options.owners is None:
        options = replace(options, owners=True)
    options.check(settings.filters)
    paths.check()
    has_tables = options.out != "-"
    output = options.output_spec(settings.filters) if has_tables else OutputSpec.nothing()
    with namespace(options) as listen:
        spec = run_spec(options, VERSION, paths, is_shown=True)
        spec = replace(spec, is_service=is_unasked)
        if spec.api is not None and listen is not None:
            spec = replace(spec, api=replace(spec.api, opened=listen))
        headless.run(spec, output)
