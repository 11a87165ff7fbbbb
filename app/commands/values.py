"""Values of commands, looked at before anything is done, by those who will read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.commands.export_target import target
from app.commands.tables import check_columns

Saved = Mapping[str, str]
"""Filters by name, that `@NAME` may stand for."""


def check(command: str, text: str, saved: Saved) -> None:
    """Raise UsageError for a value that a command can never be done with, whatever runs: where it
    is known in which column of it, a TextError."""
    if (look := _LOOKS.get(command)) is not None:
        look(text, saved)


# Imported where they are needed: numpy and pydantic, which other tapes do without.


def _shown_flows(text: str, saved: Saved) -> None:
    from probes.flow.filter import FlowFilter

    FlowFilter.parse(text, saved)


def _counted_flows(text: str, saved: Saved) -> None:
    from probes.flow.filter import FlowFilter

    FlowFilter.parse(text, saved).to_c()


def _shown_paths(text: str, saved: Saved) -> None:
    from app.console.live.path_filter import parse

    parse(text, saved)


def _shown_events(text: str, saved: Saved) -> None:
    from probes.filter import parse
    from probes.filter.events import EVENTS

    parse(text, EVENTS, saved)


def _policy(text: str, _: Saved) -> None:
    from probes.monitor.policy import Policy

    Policy.parse_short(text)


def _destination(text: str, _: Saved) -> None:
    from app.resolve import check_address

    check_address(text)


def _address(text: str, _: Saved) -> None:
    from app.resolve import address

    address(text)


def _layout(text: str, _: Saved) -> None:
    from app.config.layouts import path_of

    path_of(text)


_LOOKS: Mapping[str, Callable[[str, Saved], object]] = {
    "flow.filter": _shown_flows,
    "flow.capture": _counted_flows,
    "path.filter": _shown_paths,
    "event.filter": _shown_events,
    "trigger.add": _policy,
    "path.trace": _destination,
    "path.untrace": _address,
    "view.export": lambda text, _: target(text),
    "view.columns": lambda text, _: check_columns(text),
    "layout.save": _layout,
    "layout.load": _layout,
}
