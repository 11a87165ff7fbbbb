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
    connected,
    controller_options,
    option,
    print_table,
)
from app.commands.remote import placed
from app.files import as_invoker
from app.outputs.formats import FORMATS
from bpf.quantities import duration

if TYPE_CHECKING:
    from app.api.client import Client
    from bpf.compiler import Diagnostic
    from probes.config.model import ProbeConfig
    from probes.control_plane import Check, ProbeInfo, Replacement
    from probes.reports import Compatibility

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
_map_name = argument("map_name", "MAP", "A map that maps.MAP makes writable.")
_key = argument(
    "key", "KEY", "Its key as tables show it: 192.0.2.1, 80, or JSON: '{\"port\": 80}'."
)


def _file(command: F) -> F:
    command = option(
        "-i", "--interface", metavar="NAME",
        help="Interface of a probe whose file names none; of an application: the monitor's.",
    )(command)  # fmt: skip
    return argument("file", "FILE", "A configuration: .toml or .json.")(command)


_force = option(
    "--force", is_flag=True, help="Start it even if it drops every packet of its interface."
)


@probe.command()
@_file
@_force
@controller_options
def add(file: str, interface: str, force: bool, **remote: str) -> None:
    """Start a probe."""
    config = _load(file)
    with _client(remote, config) as client:
        config = placed(config, interface, client.monitor)
        info = client.add(config, force=force)
        for text in info.warnings:
            _say(f"warning: {text}")
        _say(f"{info.name}: generation {info.generation} {info.state} on {_places(info)}")


@probe.command()
@_file
@_force
@controller_options
def replace(file: str, interface: str, force: bool, **remote: str) -> None:
    """Replace a probe by a new generation; no packet is lost.

    The fate of its maps is printed first.
    """
    config = _load(file)
    with _client(remote, config) as client:
        config = placed(config, interface, client.monitor)
        _tell(client.check(config), config)
        _replaced(config.name, client.replace(config, force=force))


@probe.command()
@_file
@controller_options
def check(file: str, interface: str, **remote: str) -> None:
    """Compile and verify, and change nothing."""
    config = _load(file)
    with _client(remote, config) as client:
        config = placed(config, interface, client.monitor)
        found = client.check(config)
        _tell(found, config)
        _say(f"{config.name}: compiles and verifies, in {duration(found.seconds)}")


@probe.command("list")
@option("--json", "as_json", is_flag=True, help="Print JSON.")
@controller_options
def list_probes(as_json: bool, **remote: str) -> None:
    """List all probes."""
    with _client(remote) as client:
        infos = client.probes()
    if as_json:
        from pydantic import TypeAdapter

        from probes import control_plane as plane

        dumped = TypeAdapter(tuple[plane.ProbeInfo, ...]).dump_python(infos, mode="json")
        print(json.dumps(dumped, indent=2))
        return
    head = "NAME", "GENERATION", "WINDOW", "WHERE", "METRICS", "STATE"
    print_table([head, *map(_row, infos)])


@probe.command()
@_name
@controller_options
def show(name: str, **remote: str) -> None:
    """Print a probe's configuration as JSON."""
    with _client(remote) as client:
        from probes.config.model import dump

        print(json.dumps(dump(client.config(name)), indent=2))


@probe.command()
@_name
@option(
    "--format", "kind", metavar="|".join(FORMATS), usual="the probe's",
    help="Format of the tables.",
)  # fmt: skip
@option("--last", is_flag=True, help="Print the last window again, and end none.")
@controller_options
def export(name: str, kind: str, last: bool, **remote: str) -> None:
    """End a probe's window now and print its tables."""
    with _client(remote) as client:
        sys.stdout.buffer.write(client.document(name, kind, last=last))
        sys.stdout.flush()


@probe.command()
@_name
@_map_name
@controller_options
def entries(name: str, map_name: str, **remote: str) -> None:
    """Print the entries of a writable map as JSON, one a line."""
    with _client(remote) as client:
        for entry in client.entries(name, map_name):
            print(json.dumps(entry))


@probe.command("set")
@_name
@_map_name
@_key
@argument("value", "VALUE", "Its value, likewise.")
@controller_options
def set_entry(name: str, map_name: str, key: str, value: str, **remote: str) -> None:
    """Store an entry of a writable map: an allow list, rules, limits."""
    from probes.tables.entries import value_of

    with _client(remote) as client:
        client.set_entry(name, map_name, value_of(key), value_of(value))


@probe.command("unset")
@_name
@_map_name
@_key
@controller_options
def delete_entry(name: str, map_name: str, key: str, **remote: str) -> None:
    """Delete an entry of a writable map; of an array, set it to zero."""
    from probes.tables.entries import value_of

    with _client(remote) as client:
        client.delete_entry(name, map_name, value_of(key))


@probe.command()
@_name
@controller_options
def rollback(name: str, **remote: str) -> None:
    """Return to the previous generation of a probe."""
    with _client(remote) as client:
        made = client.roll_back(name)
        _tell_fates(made.compatibility)
        _replaced(name, made)


@probe.command()
@_name
@option("--force", is_flag=True, help="Remove an application even if an active policy runs it.")
@controller_options
def remove(name: str, force: bool, **remote: str) -> None:
    """Stop and remove a probe."""
    with _client(remote) as client:
        client.remove(name, force=force)
        _say(f"{name}: removed")


@contextmanager
def _client(remote: Mapping[str, str], config: ProbeConfig | None = None) -> Iterator[Client]:
    """Connect to a controller. If it refuses the source of `config`, print its reasons."""
    from bpf.compiler import CompileError

    files = config.files() if config else {}
    try:
        with connected(remote) as client:
            yield client
    except CompileError as error:
        _tell_remarks(error.diagnostics, files)
        raise click.exceptions.Exit(error.exit_code) from None


def _load(file: str) -> ProbeConfig:
    from probes.config.model import load

    with as_invoker():
        return load(file)


def _tell_remarks(diagnostics: Iterable[Diagnostic], files: Mapping[str, str]) -> None:
    for diagnostic in diagnostics:
        _say(str(diagnostic.renamed(files)))


def _tell(found: Check, config: ProbeConfig) -> None:
    _tell_remarks(found.diagnostics, config.files())
    if found.compatibility is not None:
        _tell_fates(found.compatibility)
    for cut in found.cuts:
        _say(f"warning: {cut}")
    for cost in found.costs:
        _say(f"{cost.side}: {cost.ns:.1f} ns a packet")


def _tell_fates(report: Compatibility) -> None:
    for fate in report.maps:
        reason = f" ({fate.reason})" if fate.reason else ""
        _say(f"{fate.side}: map {fate.map}: {fate.fate}{reason}")
    for name in report.lost_metrics:
        _say(f"metric {name} ends")
    for name in report.new_metrics:
        _say(f"metric {name} is new")
    for warning in report.warnings:
        _say(f"warning: {warning}")


def _replaced(name: str, made: Replacement) -> None:
    _say(f"{name}: generation {made.generation} {made.state}, after {duration(made.seconds)}")


def _places(info: ProbeInfo) -> str:
    return ", ".join(f"{p.interface} ({p.hook}, {p.mode})" for p in info.programs)


def _row(info: ProbeInfo) -> tuple[str, ...]:
    state = "built in" if info.builtin and info.state == "runs" else info.state
    numbers = str(info.generation), str(info.window)
    return info.name, *numbers, _places(info) or "-", ", ".join(info.metrics) or "-", state


def _say(text: str) -> None:
    """Print a message to standard error: standard output holds data."""
    print(text, file=sys.stderr)
