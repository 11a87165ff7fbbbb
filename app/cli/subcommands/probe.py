"""`probedeck probe`: probes of a controller that runs, by its API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from app.cli.command import (
    CommandGroup,
    F,
    argument,
    controls,
    operations,
    option,
    print_json,
    print_table,
    replaced,
    say,
    tell_fates,
)
from app.commands.remote import placed
from app.files import as_invoker
from app.outputs.formats import FORMATS
from bpf.quantities import duration

if TYPE_CHECKING:
    from app.api.client import Client
    from bpf.compiler import Diagnostic
    from probes.config.model import ProbeConfig
    from probes.reports import Check, ProbeInfo

EXAMPLES = """\b
Examples:
  probedeck probe add counter.toml -i eth0
  probedeck probe replace counter.toml
  probedeck probe export counter --format csv
  probedeck probe set firewall allow 192.0.2.1 1
  probedeck probe list --connect https://router1:8765 --token ~/.router1"""

probe = CommandGroup(
    "probe", help="Add, replace, read and remove a controller's probes.", epilog=EXAMPLES
)
_name = argument("name", "NAME", "The probe's name.")


def _file(command: F) -> F:
    command = option(
        "-i", "--interface", metavar="NAME",
        help="Interface of a probe whose file names none; of an application: the monitor's.",
    )(command)  # fmt: skip
    return argument("file", "FILE", "A configuration: .toml or .json.")(command)


_force = option(
    "--force", is_flag=True, help="Start it even if it drops every packet of its interface."
)


@controls(probe, "add")
@_file
@_force
def add(client: Client, file: str, interface: str, force: bool) -> None:
    """Start a probe."""
    with _offered(client, file, interface) as config:
        info = client.add(config, force=force)
        for text in info.warnings:
            say(f"warning: {text}")
        say(f"{info.name}: generation {info.generation} {info.state} on {_places(info)}")


@controls(probe, "replace")
@_file
@_force
def replace(client: Client, file: str, interface: str, force: bool) -> None:
    """Replace a probe by a new generation; no packet is lost.

    The fate of its maps is printed first.
    """
    with _offered(client, file, interface) as config:
        _tell(client.check(config), config)
        say(f"{config.name}: {replaced(client.replace(config, force=force))}")


@controls(probe, "check")
@_file
def check(client: Client, file: str, interface: str) -> None:
    """Compile and verify, and change nothing."""
    with _offered(client, file, interface) as config:
        found = client.check(config)
        _tell(found, config)
        say(f"{config.name}: compiles and verifies, in {duration(found.seconds)}")


@controls(probe, "list")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_probes(client: Client, as_json: bool) -> None:
    """List all probes."""
    infos = client.probes()
    if as_json:
        from probes.reports import ProbeInfo

        print_json(tuple[ProbeInfo, ...], infos)
        return
    head = "NAME", "GENERATION", "WINDOW", "WHERE", "METRICS", "STATE"
    print_table([head, *map(_row, infos)])


@controls(probe, "show")
@_name
def show(client: Client, name: str) -> None:
    """Print a probe's configuration as JSON."""
    from probes.config.model import dump

    print(json.dumps(dump(client.config(name)), indent=2))


@controls(probe, "export")
@_name
@option(
    "--format", "kind", metavar="|".join(FORMATS), usual="the probe's",
    help="Format of the tables.",
)  # fmt: skip
@option("--last", is_flag=True, help="Print the last window again, and end none.")
def export(client: Client, name: str, kind: str, last: bool) -> None:
    """End a probe's window now and print its tables."""
    sys.stdout.buffer.write(client.document(name, kind, last=last))
    sys.stdout.flush()


operations(probe)


@contextmanager
def _offered(client: Client, file: str, interface: str) -> Iterator[ProbeConfig]:
    """Read a configuration. If the controller refuses its source, print the reasons."""
    from bpf.compiler import CompileError
    from probes.config.model import load

    with as_invoker():
        config = load(file)
    try:
        yield placed(config, interface, client.monitor)
    except CompileError as error:
        _tell_remarks(error.diagnostics, config.files())
        raise click.exceptions.Exit(error.exit_code) from None


def _tell_remarks(diagnostics: Iterable[Diagnostic], files: Mapping[str, str]) -> None:
    for diagnostic in diagnostics:
        say(str(diagnostic.renamed(files)))


def _tell(found: Check, config: ProbeConfig) -> None:
    _tell_remarks(found.diagnostics, config.files())
    if found.compatibility is not None:
        tell_fates(found.compatibility)
    for cut in found.cuts:
        say(f"warning: {cut}")
    for cost in found.costs:
        say(f"{cost.side}: {cost.ns:.1f} ns a packet")


def _places(info: ProbeInfo) -> str:
    return ", ".join(f"{p.interface} ({p.hook}, {p.mode})" for p in info.programs)


def _row(info: ProbeInfo) -> tuple[str, ...]:
    state = "built in" if info.builtin and info.state == "runs" else info.state
    numbers = str(info.generation), str(info.window)
    return info.name, *numbers, _places(info) or "-", ", ".join(info.metrics) or "-", state
