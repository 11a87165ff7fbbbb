"""How a command gets its options: from the command line, and what that leaves out from the
environment and the configuration file."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import typer

from app.cli.options import Options
from app.config.load import NONE, Loaded, load
from app.config.model import Settings, Ui
from app.config.schema import hints_of, settings_of
from bpf.errors import UsageError


def takes(
    *of: type, only: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of dataclasses as its options, and --config; it gets them as
    arguments of these classes, and as Settings, or Loaded, what else the configuration says.

    `only` are the names of the fields, where it is not all. typer learns a command's options from
    its signature alone. What the command line leaves out is as the configuration has it.
    """
    shared = {
        each.name: inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=[] if each.default is dataclasses.MISSING else each.default,
            annotation=hints_of(options)[each.name],
        )
        for options in of
        for each in dataclasses.fields(options)
        if not only or each.name in only
    }

    def read(context: typer.Context, config: str) -> Loaded:
        # A shell that completes wants no complaint.
        loaded = Loaded() if context.resilient_parsing else load(config, Options)
        loaded.check()
        context.default_map = {k: v for k, v in loaded.values.items() if k in shared}
        return loaded

    config = typer.Option(
        metavar="FILE",
        is_eager=True,
        callback=read,
        show_default="see config path",
        help=f"Settings, TOML; {NONE}: only those of the environment.",
    )
    last = inspect.Parameter(
        "config", inspect.Parameter.KEYWORD_ONLY, default="", annotation=Annotated[str, config]
    )

    def give(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        given = {
            p.annotation: p.name
            for p in signature.parameters.values()
            if p.annotation in (*of, Settings, Loaded)
        }
        own = [p for p in signature.parameters.values() if p.name not in given.values()]

        def run(**values: Any) -> None:
            loaded: Loaded = values.pop("config")
            said = {name: values.pop(name) for name in shared}
            made: dict[type, Any] = {each: each(**_of(each, said)) for each in of}
            settings = replace(loaded.settings, ui=made.get(Ui, Ui()))
            made |= {Settings: settings, Loaded: loaded}
            for warning in settings.warnings:
                print(f"probedeck: warning: {warning}", file=sys.stderr)
            try:
                command(**values, **{name: made[each] for each, name in given.items()})
            except UsageError as error:
                raise blamed(error, loaded) from None

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters += [*shared.values(), last]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        return run

    return give


def _of(options: type, said: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that are this class's fields."""
    return {name: said[name] for name in settings_of(options) if name in said}


def blamed(error: UsageError, loaded: Loaded) -> UsageError:
    """`error`, with the place that a wrong value of Options is from, where that is known."""
    name = _culprit(error, loaded.values, loaded.settings.filters)
    return (
        UsageError(f"{loaded.origins[name]}: {error.message}", hint=error.hint) if name else error
    )


def unfit(loaded: Loaded) -> list[UsageError]:
    """What is wrong about values of Options beyond their types."""
    found = []
    values, saved = _of(Options, loaded.values), loaded.settings.filters
    while (error := _refusal(values, saved)) is not None:
        found.append(blamed(error, loaded))
        if not (name := _culprit(error, values, saved)):
            break
        del values[name]
    return [*found, *_filters_of_nothing(loaded)]


def _filters_of_nothing(loaded: Loaded) -> Iterator[UsageError]:
    """Saved filters that no kind of rows can be asked for."""
    if not (loaded.document and loaded.settings.filters):
        return
    from app.console.live.path_filter import HOPS, PATHS
    from probes.filter import parts
    from probes.filter.events import EVENTS
    from probes.flow.filter import LIVE_FLOWS, WINDOW_FLOWS
    from probes.path.filter import ANSWERS, FINDINGS

    domains = LIVE_FLOWS, WINDOW_FLOWS, PATHS, HOPS, ANSWERS, FINDINGS, EVENTS
    for name, text in loaded.settings.filters.items():
        try:
            parts(text, domains, loaded.settings.filters)
        except UsageError as error:
            yield loaded.document.wrong(("filters", name), error)


def _culprit(error: UsageError, values: Mapping[str, Any], saved: Mapping[str, str]) -> str:
    """Which value causes it alone; empty for none."""
    for name, value in _of(Options, values).items():
        if str(_refusal({name: value}, saved)) == str(error):
            return name
    return ""


def _refusal(values: Mapping[str, Any], saved: Mapping[str, str]) -> UsageError | None:
    try:
        # A filter is only of what is written; that it is said for such runs is no mistake.
        Options(**{**values, "headless": True}).check(saved)
    except UsageError as error:
        return error
    return None
