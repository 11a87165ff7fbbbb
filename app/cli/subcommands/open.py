"""`probedeck open`: captures on the screens and in the tables of a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE, Popen
from tempfile import mkdtemp

import click
from click.core import ParameterSource

from app.cli.command import GroupedCommand, argument, option, say
from app.cli.decorator import takes
from app.cli.subcommands.policy import LOCAL, networks_of
from app.cli.subcommands.record import FORM, opened, write_tables
from app.cli.subcommands.run import need_terminal
from app.config.model import Settings, Ui
from app.run.monitor import SHIPPED, policies_of
from app.run.options import OUTPUT, Options
from app.tape.options import TapeOptions
from bpf.errors import UsageError
from bpf.quantities import counted, duration
from probes.config.options import settings_of
from probes.monitor.options import MonitorOptions
from probes.tunnels import Tunnels

EXAMPLES = """\b
Examples:
  probedeck open attack.pcapng
  probedeck open captures/ --local 192.0.2.0/24 --record incident
  tcpdump -i eth0 -w - -G 60 -W 1 | probedeck open - --headless --views flows"""
_EVER = 0, 1 << 62


@click.command(cls=GroupedCommand, epilog=EXAMPLES)
@argument("captures", "FILE...", "Captures: pcap or pcapng files, folders, or -.", nargs=-1,
          required=True)  # fmt: skip
@LOCAL
@option("--record", metavar="DIR", group=OUTPUT, help="Keep the windows in DIR, for replay.")
@FORM
@takes(
    Options, Ui, TapeOptions,
    only=(
        "headless", "out", "views", "filter", "network_prefix", "networks", "interval", "tunnels",
        "policies", "policy", *settings_of(Ui), *settings_of(TapeOptions),
    ),
)  # fmt: skip
def open(  # noqa: A001 - the name of the command
    options: Options, settings: Settings, playing: TapeOptions, captures: tuple[str, ...],
    local: tuple[str, ...], record: str, form: str,
) -> int:  # fmt: skip
    """Show captures as a run, or write their tables.

    The programs of the flow probe and of the monitor see each frame, and windows end by the
    capture's clock. After ten minutes, quiet windows end together, at most a minute of them; with
    --interval none do. Owners and paths are unknown, and applications do not run.
    """
    from app.lab import imported
    from app.lab.policy_runner import PolicyRunner

    startup = playing.startup(settings, shown=not options.headless)
    if not options.headless:
        need_terminal("--headless", (1,))
    found, said = policies_of(options.policies or SHIPPED, options.policy, ())
    said = {**said, "interval": options.flow.interval, "tunnels": Tunnels(options.flow.tunnels)}
    source = click.get_current_context().get_parameter_source("interval")
    monitor, joins = MonitorOptions(**said), source is ParameterSource.DEFAULT
    with _directory(record) as directory:
        with PolicyRunner(found.policies, monitor, networks_of(local), joins=joins) as runner:
            result = imported.record(captures, runner, directory)
        say(f"{counted(result.frames, 'frame')} in {duration(result.seconds)}")
        for note in result.notes:
            say(f"probedeck: {note}")
        if not result.frames:
            raise UsageError(f"no frame to show in {', '.join(captures)}")
        if options.headless and startup.tape is None:
            with opened(directory) as recording:
                write_tables(recording, _EVER, options, settings, form)
            return 0
        if imported.STDIN in captures:
            # The keys come from the terminal, not from the pipe.
            os.dup2(os.open("/dev/tty", os.O_RDWR), 0)
        from app.console import entry

        return entry.replay((directory,), "", settings, startup, ", ".join(captures))


@contextmanager
def _directory(kept: str) -> Iterator[str]:
    if kept:
        yield kept
        return
    made = mkdtemp(prefix="probedeck-")
    # Its standard input ends with this process, also by kill -9.
    remove = ("/bin/sh", "-c", 'cat; rm -rf -- "$0"', made)
    with Popen(remove, stdin=PIPE, stdout=DEVNULL, start_new_session=True):
        yield made
