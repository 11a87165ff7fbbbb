"""Checks of commands' values before anything runs: what no run of the command could accept.

Each raises UsageError; TextError if the column of the mistake is known. `saved` are filters by
name, for `@NAME`. Imports are inside: a tape without such values needs neither numpy nor pydantic.
"""

from __future__ import annotations

from app.commands.model import Saved, check_columns


def ui_options() -> tuple[str, ...]:
    """Return the names of the console's options."""
    from app.config.model import Ui
    from probes.config.options import settings_of

    return tuple(settings_of(Ui))


def flow_filter(text: str, saved: Saved) -> None:
    from probes.flow.filter import FlowFilter

    FlowFilter.parse(text, saved)


def flow_grouping(text: str, saved: Saved) -> None:
    from app.commands.flow_view import Grouping

    Grouping.parse(f"networks {text}")


def capture_filter(text: str, saved: Saved) -> None:
    from probes.flow.filter import FlowFilter

    FlowFilter.parse(text, saved).to_c()


def path_filter(text: str, saved: Saved) -> None:
    from app.commands.path_filter import parse

    parse(text, saved)


def event_filter(text: str, saved: Saved) -> None:
    from probes.filter import parse
    from probes.filter.owners import EVENTS

    parse(text, EVENTS, saved)


def policy(text: str, saved: Saved) -> None:
    from probes.monitor.policy.ready import policies_of

    policies_of(text)


def destination(text: str, saved: Saved) -> None:
    from app.resolve import check_address

    check_address(text)


def address(text: str, saved: Saved) -> None:
    from app.resolve import address

    address(text)


def path_options(text: str, saved: Saved) -> None:
    from probes.config.options import changed
    from probes.path.options import PathOptions

    changed(PathOptions(), text)


def output(text: str, saved: Saved) -> None:
    from app.exporters.kinds import parse
    from probes.reports import OutputConfig

    parse(OutputConfig(text))


def layout(text: str, saved: Saved) -> None:
    from app.config.layouts import path_of

    path_of(text)


def theme(text: str, saved: Saved) -> None:
    from app.config.paths import check_file_name

    check_file_name(text, "theme")


def columns(text: str, saved: Saved) -> None:
    check_columns(text)
