"""Commands about the culprit of an alarm: its flows, its path, a capture of nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable

from app.console.screen import ConsoleScreen
from app.console.screens.flows.commands import CaptureCommand
from app.console.screens.paths.hop import PathKey
from bpf.errors import UsageError


class CulpritCommands:
    """Commands of a screen whose chosen row may have the finding of an alarm."""

    def __init__(
        self, screen: ConsoleScreen, prefix: str, filter_text: Callable[[], str],
        host: Callable[[], str],
    ) -> None:  # fmt: skip
        """`prefix` begins the names of the commands. `filter_text` returns the filter of the chosen
        row's finding, empty without one; `host` returns its host, empty for the only one."""
        self._screen, self._prefix, self._filter_text = screen, prefix, filter_text
        self._host = host
        self._capture = CaptureCommand(screen, f"{prefix}.capture", host, lambda _: self._filter())

    def _filter(self) -> str:
        if not (text := self._filter_text()):
            raise UsageError("no flows are known here", hint="choose an alarm that says who did it")
        return text

    @property
    def hint(self) -> str:
        """The keys of the commands."""
        words = ("flows", "trace", "capture")
        keys = (self._screen.console.key_of(f"{self._prefix}.{word}") for word in words)
        return ", ".join(f"{key} {word}" for key, word in zip(keys, words, strict=True))

    def show_flows(self) -> None:
        screen, host = self._screen, self._host()
        own = f"node:/^{re.escape(host)}$/ " if host else ""
        # Of all flows: no group stays open.
        lines = f"flow.view conversations\nflow.filter {own}{self._filter()}"
        screen.app.call_later(screen.console.action_command, lines)

    def trace(self) -> None:
        # Imported here: the first paint needs no tracing.
        from probes.monitor.control.tracing import top_flows

        host, frame = self._host(), self._screen.console.time.frame
        frame = frame.of(host) or frame
        found = top_flows(frame.flows.rows, [self._filter()])
        if not found:
            raise UsageError(
                f"{host or 'this host'} answers none of these flows",
                hint="a path is traced by packets that this host sends",
            )
        self._screen.trace(PathKey(*found[0], host=host))

    def capture(self, text: str | None = None) -> None:
        """Ask before other flows are no longer counted."""
        self._capture.run(text)

    do_trigger_flows = do_event_flows = show_flows
    do_trigger_trace = do_event_trace = trace
    do_trigger_capture = do_event_capture = capture
