"""`probedeck probe`: probes of a controller that runs, by its API."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.files import as_invoker
from app.outputs.formats import FORMATS

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

probe_cli = typer.Typer(
    name="probe",
    help="Add, replace, read and remove a controller's probes.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Url = Annotated[
    str,
    typer.Option(
        "--connect",
        metavar="URL",
        help="The controller: unix:PATH, http://HOST:PORT or https://HOST:PORT.",
        show_default="unix:/run/probedeck/api.sock",
    ),
]
Token = Annotated[
    str, typer.Option("--token", metavar="FILE", help="The token that the controller asks for.")
]
Authorities = Annotated[
    str,
    typer.Option(
        "--ca", metavar="FILE", help="Certificates to trust.", show_default="the system's"
    ),
]
File = Annotated[str, typer.Argument(metavar="FILE", help="A configuration: .toml or .json.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The probe's name.")]
Interface = Annotated[
    str,
    typer.Option(
        "-i", "--interface", metavar="NAME", help="The interface, where the file names none."
    ),
]
Format = Annotated[
    str,
    typer.Option(
        "--format", metavar="|".join(FORMATS), help="Of the tables.", show_default="the probe's"
    ),
]
Force = Annotated[
    bool,
    typer.Option("--force", help="Also a program that lets no packet of its interface pass."),
]
MapName = Annotated[str, typer.Argument(metavar="MAP", help="A map that maps.MAP makes writable.")]
Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="Its key as tables show it: 192.0.2.1, 80, or JSON: '{\"port\": 80}'."
    ),
]
EntryValue = Annotated[str, typer.Argument(metavar="VALUE", help="Its value, likewise.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@probe_cli.command()
def add(
    file: File,
    interface: Interface = "",
    force: Force = False,
    url: Url = "",
    token: Token = "",
    ca: Authorities = "",
) -> None:
    """Start a probe."""
    config = _load(file, interface)
    with _client(url, token, ca, config) as client:
        info = client.add(config, force=force)
        _say(f"{info.name}: generation {info.generation} runs on {_places(info)}")


@probe_cli.command()
def replace(
    file: File,
    interface: Interface = "",
    force: Force = False,
    url: Url = "",
    token: Token = "",
    ca: Authorities = "",
) -> None:
    """Put a new generation in a probe's place, without losing a packet.

    What becomes of its maps is said first.
    """
    config = _load(file, interface)
    with _client(url, token, ca, config) as client:
        _tell(client.check(config), config)
        _replaced(config.name, client.replace(config, force=force))


@probe_cli.command()
def check(
    file: File, interface: Interface = "", url: Url = "", token: Token = "", ca: Authorities = ""
) -> None:
    """Compile and verify, and change nothing."""
    config = _load(file, interface)
    with _client(url, token, ca, config) as client:
        found = client.check(config)
        _tell(found, config)
        _say(f"{config.name}: compiles and verifies, in {found.seconds * 1e3:.0f} ms")


@probe_cli.command("list")
def list_probes(
    as_json: AsJson = False, url: Url = "", token: Token = "", ca: Authorities = ""
) -> None:
    """All probes."""
    with _client(url, token, ca) as client:
        infos = client.probes()
    if as_json:
        from pydantic import TypeAdapter

        from probes import control_plane as plane

        _print_json(TypeAdapter(tuple[plane.ProbeInfo, ...]).dump_python(infos, mode="json"))
        return
    header = ("NAME", "GENERATION", "WINDOW", "WHERE", "METRICS", "STATE")
    _print_table([header, *map(_row, infos)])


@probe_cli.command()
def show(name: Name, url: Url = "", token: Token = "", ca: Authorities = "") -> None:
    """A probe's configuration, as JSON."""
    with _client(url, token, ca) as client:
        from probes.config.model import dump

        _print_json(dump(client.config(name)))


@probe_cli.command()
def export(
    name: Name, kind: Format = "", url: Url = "", token: Token = "", ca: Authorities = ""
) -> None:
    """End a probe's window now, and print its tables."""
    with _client(url, token, ca) as client:
        sys.stdout.buffer.write(client.document(name, kind))
        sys.stdout.flush()


@probe_cli.command()
def entries(
    name: Name, map_name: MapName, url: Url = "", token: Token = "", ca: Authorities = ""
) -> None:
    """A writable map's entries, as JSON, one a line."""
    with _client(url, token, ca) as client:
        for entry in client.entries(name, map_name):
            print(json.dumps(entry))


@probe_cli.command("set")
def set_entry(
    name: Name,
    map_name: MapName,
    key: Key,
    value: EntryValue,
    url: Url = "",
    token: Token = "",
    ca: Authorities = "",
) -> None:
    """Store an entry of a writable map: an allow list, rules, limits."""
    from probes.tables.entries import value_of

    with _client(url, token, ca) as client:
        client.set_entry(name, map_name, value_of(key), value_of(value))


@probe_cli.command("unset")
def delete_entry(
    name: Name, map_name: MapName, key: Key, url: Url = "", token: Token = "", ca: Authorities = ""
) -> None:
    """Delete an entry of a writable map; of an array, set it to zero."""
    from probes.tables.entries import value_of

    with _client(url, token, ca) as client:
        client.delete_entry(name, map_name, value_of(key))


@probe_cli.command()
def rollback(name: Name, url: Url = "", token: Token = "", ca: Authorities = "") -> None:
    """Put a probe's generation before back."""
    with _client(url, token, ca) as client:
        made = client.roll_back(name)
        _tell_fates(made.compatibility)
        _replaced(name, made)


@probe_cli.command()
def remove(name: Name, url: Url = "", token: Token = "", ca: Authorities = "") -> None:
    """End a probe."""
    with _client(url, token, ca) as client:
        client.remove(name)
        _say(f"{name}: removed")


@contextmanager
def _client(url: str, token: str, ca: str, config: ProbeConfig | None = None) -> Iterator[Client]:
    """Print why the source of `config` is refused to standard error, a line for each reason."""
    # Only now: a help text needs none of it.
    from app.api.client import DEFAULT_URL, Client, Remote
    from bpf.compiler import CompileError

    files = config.files() if config else {}
    client = Client(Remote(url or DEFAULT_URL, token, ca))
    try:
        yield client
    except CompileError as error:
        _tell_remarks(error.diagnostics, files)
        raise typer.Exit(error.exit_code) from None
    finally:
        client.close()


def _load(file: str, interface: str) -> ProbeConfig:
    """Raises UsageError; a direction of no interface gets `interface`."""
    from probes.config.model import load

    with as_invoker():
        return load(file).on(interface)


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
    """What a replacement keeps and what it loses."""
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
    _say(f"{name}: generation {made.generation} runs, after {made.seconds * 1e3:.0f} ms")


def _places(info: ProbeInfo) -> str:
    return ", ".join(f"{p.interface} ({p.hook}, {p.mode})" for p in info.programs)


def _row(info: ProbeInfo) -> tuple[str, ...]:
    state = info.failure or ("built in" if info.builtin else "runs")
    metrics = ", ".join(info.metrics) or "-"
    numbers = str(info.generation), str(info.window)
    return info.name, *numbers, _places(info) or "-", metrics, state


def _say(text: str) -> None:
    """Words go where they don't get between the data."""
    print(text, file=sys.stderr)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)]
        print("  ".join(cells).rstrip())
