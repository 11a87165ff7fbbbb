"""How a command gets its options: from the command line, then from the environment and the
configuration file."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import click

from app.cli.command import option
from app.config import theme_colors
from app.config.load import NONE, LoadedSettings, load
from app.config.model import Settings, Ui
from app.run.options import SECTIONS, Options
from bpf.errors import ProbedeckError, UsageError
from probes.config.options import Setting, made, settings_of
from probes.flow.options import GENERAL
from probes.path.options import PathOptions

Callback = Callable[..., Any]
_NO_FILE = LoadedSettings()


def takes(
    *of: type, only: Sequence[str] = (), bare: bool = False
) -> Callable[[Callback], Callback]:
    """Return a decorator that gives a command the fields of dataclasses as options, and --config.

    The command gets each dataclass, and Settings and LoadedSettings, as the argument that has this
    class as its annotation. `only` names the fields, if not all are options; `bare` options have no
    prefix. If the command line leaves out an option of SECTIONS, the environment or the
    configuration file gives its value. If several classes have a field of one name, the first one
    declares the option, and all get its value.
    """
    fields: dict[str, Setting] = {}
    for name, each in chain.from_iterable(settings_of(options).items() for options in of):
        if not only or name in only:
            fields.setdefault(name, each)
    of_file = {
        name
        for section in SECTIONS.values()
        for name, each in section.items()
        if fields.get(name) == each
    }
    given_file = ""

    def read(context: click.Context, _: click.Parameter, config: str) -> LoadedSettings:
        # A shell that completes shows no error.
        loaded = LoadedSettings() if context.resilient_parsing else load(config, SECTIONS)
        loaded.check()
        nonlocal given_file
        given_file = config
        context.default_map = {k: v for k, v in loaded.values.items() if k in of_file}
        return loaded

    config = option(
        "--config",
        group=GENERAL,
        metavar="FILE",
        is_eager=True,
        callback=read,
        default="",
        usual="your own",
        help=f"TOML file of settings; {NONE}: no file.",
    )

    def give(command: Callback) -> Callback:
        parameters = inspect.signature(command).parameters.values()
        wanted = {each.annotation: each.name for each in parameters}

        @functools.wraps(command)
        def run(*, config: LoadedSettings = _NO_FILE, **values: Any) -> Any:
            given = {
                name: list(values.pop(name)) if each.many else values.pop(name)
                for name, each in fields.items()
            }
            offered: dict[str, Any] = {each.__name__: made(each, given) for each in of}
            again = functools.partial(_again, given_file)
            ui = offered.get("Ui", Ui())
            offered["Settings"] = replace(config.settings, ui=ui, again=again)
            offered["LoadedSettings"] = config
            for warning in config.settings.warnings:
                print(f"probedeck: warning: {warning}", file=sys.stderr)
            try:
                values |= {wanted[k]: v for k, v in offered.items() if k in wanted}
                return command(**values)
            except UsageError as error:
                # The same error with its place, if the file or a variable has the wrong value.
                placed = (e for e in unfit(config) if e.message.endswith(f": {error.message}"))
                raise next(placed, error) from None

        taking: Callback = run
        if of_file or wanted.keys() & {"Settings", "LoadedSettings"}:
            taking = config(taking)
        for each in reversed(fields.values()):
            taking = _option(each.bare if bare else each)(taking)
        return taking

    return give


def _again(file: str) -> tuple[Settings, Mapping[str, Any]]:
    """Read the settings again. Raises UsageError with every mistake."""
    loaded = load(file, SECTIONS)
    if problems := [*loaded.problems, *unfit(loaded)]:
        raise UsageError("\n".join(map(str, problems)))
    return loaded.settings, loaded.values


def _option(each: Setting) -> Callable[[Callback], Callback]:
    plain = each.many or each.kind is bool
    usual = f"{each.default:g}" if isinstance(each.default, float) else str(each.default or "")
    kind: Any = click.Choice(each.choices) if each.choices else each.kind
    if each.read and kind is not str:
        # A text is checked by its class instead: then the error tells its place in a file.
        kind = each.read
    return option(
        *each.flags,
        each.name,
        help=each.help,
        group=each.group,
        usual=each.usual or ("" if plain else usual),
        metavar=each.metavar or None,
        type=kind,
        is_flag=each.kind is bool,
        multiple=each.many,
        default=None if each.many else each.default,
    )


def unfit(loaded: LoadedSettings) -> list[ProbedeckError]:
    """Return the errors of options and of the saved filters, with their places."""
    # --filter needs --headless; a filter in the file is fine for console runs.
    options = made(Options, {**loaded.values, "headless": True})
    problems = (
        *options.problems(loaded.settings.filters),
        *_impossible_paths(loaded.values),
        *_themes_without_file(loaded),
    )
    found = [
        mistake if mistake.placed else mistake.of(loaded.origins[name])
        for name, error in problems
        if name in loaded.origins
        for mistake in error.mistakes
    ]
    return [*found, *_filters_of_nothing(loaded)]


def _impossible_paths(values: Mapping[str, Any]) -> Iterator[tuple[str, UsageError]]:
    """Yield the mistakes of single values, each with the name of its field."""
    for name in settings_of(PathOptions).keys() & values.keys():
        try:
            made(PathOptions, {name: values[name]}).check()
        except UsageError as error:
            yield name, error


def _themes_without_file(loaded: LoadedSettings) -> Iterator[tuple[str, ProbedeckError]]:
    theme = str(loaded.values.get("theme", theme_colors.AUTO))
    if theme != theme_colors.AUTO:
        try:
            theme_colors.load(theme)
        except ProbedeckError as error:
            yield "theme", error


def _filters_of_nothing(loaded: LoadedSettings) -> Iterator[UsageError]:
    if not (loaded.document and loaded.settings.filters):
        return
    from app.commands.path_filter import HOPS, PATHS
    from probes.filter import parts
    from probes.filter.owners import EVENTS
    from probes.flow.filter import LIVE_FLOWS, WINDOW_FLOWS
    from probes.path.filter import ANSWERS, FINDINGS

    domains = LIVE_FLOWS, WINDOW_FLOWS, PATHS, HOPS, ANSWERS, FINDINGS, EVENTS
    for name, text in loaded.settings.filters.items():
        try:
            parts(text, domains, loaded.settings.filters)
        except UsageError as error:
            yield loaded.document.wrong(("filters", name), error)
