"""Calls of a screen to the one host of the console, or to each chosen host of a fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from bpf.errors import UsageError

if TYPE_CHECKING:
    from app.console.protocol import Console
    from app.fleet.plane import ChosenHosts
    from probes.control_plane import ControlPlane

_T = TypeVar("_T")
_PATIENCE_S = 2.0
"""Longest wait for the answers of several hosts: a slow host keeps its last answer."""


def several(console: Console) -> ChosenHosts | None:
    """Return the chosen hosts if they are several."""
    hosts = console.hosts.chosen
    return hosts if hosts is not None and len(hosts.chosen) > 1 else None


def current_host(console: Console) -> str:
    """Return the host under the cursor of several chosen hosts; empty for the only one."""
    return hosts.current if (hosts := several(console)) is not None else ""


def plane_of(console: Console, host: str) -> ControlPlane:
    """Return the control plane of a host. Without a name, return the plane of the whole console.

    Raises UsageError if the host is not chosen any more.
    """
    if not host or (hosts := console.hosts.chosen) is None:
        return console.plane
    if (plane := hosts.planes().get(host)) is None:
        raise UsageError(f"{host} is not chosen any more", hint="m on screen 7 chooses it")
    return plane


def on_host(host: str) -> str:
    """` on ams1`, for titles and messages; empty without a name."""
    return f" on {host}" if host else ""


def ask_hosts(
    console: Console, call: Callable[[ControlPlane], _T], known: Mapping[str, _T]
) -> dict[str, _T]:
    """Return the answer of every host that is there, by host; a console's only host has no name.

    A host that does not answer keeps its answer in `known`. It takes up to a few seconds. Raises
    ProbedeckError if a single host does not answer.
    """
    if (hosts := several(console)) is None:
        return {"": call(console.plane)}
    there = [one.name for one in hosts.states() if one.state.counts]
    reports = hosts.ask(call, there, _PATIENCE_S)
    answers = {one.host: one.answer for one in reports if one.error is None}
    return {name: answers[name] if name in answers else known[name]
            for name in there if name in answers or name in known}  # fmt: skip
