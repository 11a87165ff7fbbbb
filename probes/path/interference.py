"""Reports other tracers, and programs on the egress hook that take or drop clones of path tracing.

A clone is a whole packet until egress.c has cut it down to a probe, and programs before egress.c
see it first. The kernel drops a clone whose mark was changed, and stops tracing a destination after
a clone did not come to egress.c at all.
"""

from __future__ import annotations

from collections.abc import Iterable

from probes.path.targets import TracedDestination

_REPEAT_NS = 60_000_000_000
"""A warning is repeated if the last drop before it is this long ago."""


class Interference:
    """Events of one interface, each published once."""

    def __init__(self, interface: str) -> None:
        self._interface = interface
        self._remarked: dict[TracedDestination, int] = {}
        """Probes dropped at the last poll since tracing began, by target."""
        self._last_drop_ns = -_REPEAT_NS
        self._escaped: set[TracedDestination] = set()
        self._shared: set[TracedDestination] = set()
        """Destinations that another tracer probes, too."""

    def events(self, targets: Iterable[TracedDestination], now_ns: int) -> list[tuple[str, str]]:
        """Return severity and text of each new event."""
        found: list[tuple[str, str]] = []
        remarked = {target: target.remarked for target in targets}
        if any(count > self._remarked.get(target, 0) for target, count in remarked.items()):
            if now_ns - self._last_drop_ns >= _REPEAT_NS:
                found.append(("warning", self._dropped()))
            self._last_drop_ns = now_ns
        self._remarked = remarked
        escaped = {target for target in remarked if target.escaped}
        found += [
            (
                "error",
                f"tracing of {target.destination.text} stopped: another program on"
                f" {self._interface}'s egress sends probes on whole; attach it after probedeck,"
                " untrace and trace again",
            )
            for target in escaped - self._escaped
        ]
        self._escaped = escaped
        shared = {target for target in remarked if target.foreign}
        found += [("warning", self._told(target)) for target in shared - self._shared]
        self._shared = shared
        return found

    def _dropped(self) -> str:
        return (
            f"probes are dropped: another program on {self._interface}'s egress rewrites packet"
            " marks; attach it after probedeck"
        )

    def _told(self, target: TracedDestination) -> str:
        return (
            f"another tracer sends probes to {target.destination.text} on {self._interface},"
            " too: each has its own answers, but routers with a limit answer each less often"
        )
