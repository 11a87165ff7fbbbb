"""`probedeck config`: show, check and start a configuration file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from app.cli.command import CommandGroup, argument, option
from app.cli.decorator import takes, unfit
from app.config import theme_colors
from app.config.load import NONE, LoadedSettings, in_order, load
from app.config.model import Settings, Ui
from app.config.paths import config_file, data_dir, state_dir, write_private
from app.config.toml_lines import dumped
from app.exporters.kinds import EXPORTERS, parse
from app.run.options import SECTIONS, Options
from bpf.errors import TextError, UsageError
from probes.config.options import Setting, values_of
from probes.path.options import PathOptions

EXAMPLES = """\b
Examples:
  probedeck config init
  probedeck config show --origin
  PROBEDECK_THEME=light probedeck config show --origin --interval 2
  probedeck config validate draft.toml

A setting comes from the first of these sources that has it: the option; the variable PROBEDECK_ and
the option's name, such as PROBEDECK_INTERVAL=2 or PROBEDECK_NO_NAMES=1; the configuration file; the
default. If an option is repeatable, each line of its variable is one value. The configuration file
is $XDG_CONFIG_HOME/probedeck/config.toml, unless --config or PROBEDECK_CONFIG names another. Under
sudo it is the file of the caller; it must belong to the caller or root, and only its owner may have
write permission."""
_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "keys": (
        "Keys of all screens; [keys.flows] is one screen. A key runs a command, several, a tape of",
        '[macros], or keys to press: "@2/dport:443<enter>". "" turns a key off.',
        '"f12" = "view.events"',
        '"ctrl+g" = ["view.flows", "flow.sort rate"]',
    ),
    "macros": (
        "Files of tapes by name, for @NAME; a relative path starts at the directory of this file.",
        'triage = "triage.tape"',
    ),
    "columns": (
        "Columns of tables, from the left.",
        'flows = ["source", "destination", "rate", "age"]',
    ),
    "filters": ("Filters by name, for flow.filter @NAME.", 'web = "proto:tcp port:80,443"'),
}  # fmt: skip
"""Sections whose keys the user chooses: the meaning, then examples."""

config = CommandGroup(
    "config", help="Show and check settings, and write a configuration file.", epilog=EXAMPLES
)


@config.command()
def path() -> None:
    """Print the paths of the configuration, state and data files."""
    loaded = load("", SECTIONS)
    print(f"config  {loaded.file or NONE} ({loaded.state})")
    print(f"state   {state_dir()}")
    print(f"data    {data_dir()}")


@config.command()
@option("--origin", is_flag=True, help="Add where each value is from.")
@takes(Options, Ui, PathOptions)
def show(
    options: Options, paths: PathOptions, settings: Settings, loaded: LoadedSettings,
    origin: bool,
) -> None:  # fmt: skip
    """Print every setting with its effective value, as TOML. Options count, too."""
    context = click.get_current_context()
    lines: list[str] = []
    values = {**values_of(settings.ui), **values_of(options), **values_of(paths)}
    for section, of in SECTIONS.items():
        lines += ["", f"[{section}]"]
        for name, setting in of.items():
            source = context.get_parameter_source(name)
            given = source is not None and source.name == "COMMANDLINE"
            place = "command line" if given else loaded.origins.get(name, "default")
            entry = _entry(setting, values[name])
            lines.append(_commented(entry, place if origin else ""))
    for output in settings.outputs:
        line = f"url = {dumped(parse(output).shown)}"
        lines += ["", "[[outputs]]", _commented(line, settings.origin if origin else "")]
    for section in _EXAMPLES:
        lines += _table(section, getattr(settings, section), settings.origin if origin else "")
    print("\n".join(lines[1:]))


def _entry(setting: Setting, value: Any) -> str:
    return f"# {setting.name} =" if value is None else f"{setting.name} = {dumped(value)}"


def _commented(line: str, comment: str) -> str:
    return f"{line}  # {comment}" if comment else line


def _table(section: str, table: Mapping[str, Any], origin: str) -> Iterator[str]:
    yield ""
    yield _commented(f"[{section}]", origin if table else "")
    below = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in table.items() if key not in below}
    for key, value in (plain | dict(below.pop("", {}))).items():
        yield f"{dumped(key)} = {dumped(value)}"
    for name, each in below.items():
        yield from _table(f"{section}.{name}", each, "")


@config.command()
@argument("file", "[FILE]", "File to write; your own if left out.", default="")
@option("--force", is_flag=True, help="Replace a file that exists.")
def init(file: str, force: bool) -> None:
    """Write a configuration file with every setting as a comment."""
    at = Path(file) if file else config_file()
    if at.exists() and not force:
        raise UsageError(f"{at} exists already", hint="--force replaces it")
    write_private(at, template())
    print(at)


def template() -> str:
    """Return a configuration file that sets nothing."""
    import textwrap

    lines = ["# Settings of probedeck: see probedeck config --help. Lines with # show defaults."]
    for section, of in SECTIONS.items():
        lines += ["", f"[{section}]"]
        for setting in of.values():
            lines += ["", *textwrap.wrap(f"# {setting.help}", 98, subsequent_indent="# ")]
            entry = _entry(setting, setting.default).removeprefix("# ")
            usual = f"; default: {setting.usual}" if setting.usual else ""
            lines.append(f"# {_commented(entry, setting.words + usual)}")
    for section, (about, *more) in _EXAMPLES.items():
        lines += ["", f"[{section}]", f"# {about}", *(f"# {line}" for line in more)]
    lines += ["", "# An output of a run, as with --output. Further keys are options of its kind:"]
    lines += ["#     [[outputs]]", '#     url = "URL"', "# URLs are, as examples:"]
    lines += [f"#     {each.example}" for each in EXPORTERS.values()]
    return "\n".join(lines) + "\n"


@config.command()
@argument("file", "[FILE]", "File to check; your own if left out.", default="")
def validate(file: str) -> int:
    """Report every mistake in the settings, also in the environment."""
    loaded = load(file, SECTIONS)
    found = in_order([*loaded.problems, *unfit(loaded), *theme_colors.problems()])
    wrong = [*{str(each): each for each in found}.values(), *loaded.settings.warnings]
    for each in wrong:
        print(each, file=sys.stderr)
        if isinstance(each, TextError):
            print(each.marked, file=sys.stderr)
    if wrong:
        return UsageError.exit_code
    print(f"{loaded.settings.origin or 'no file'}: nothing is wrong")
    return 0
