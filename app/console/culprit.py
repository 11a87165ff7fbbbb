"""Commands about the culprit of an alarm: its flows, its path, a capture of nothing else."""

from __future__ import annotations

from collections.abc import Callable

from app.console.screen import ConsoleScreen
from app.console.screens.paths.hop import PathKey
from bpf.errors import UsageError


class CulpritCommands:
    """Commands of a screen whose chosen row may have the finding of an alarm."""

    def __init__(self, screen: ConsoleScreen, filter_text: Callable[[], str]) -> None:
        """`filter_text` returns the filter of the chosen row's finding; empty without one."""
        self._screen, self._filter_text = screen, filter_text

    def _filter(self) -> str:
        if not (text := self._filter_text()):
            raise UsageError("no flows are known here", hint="choose an alarm that says who did it")
        return text

    def hint(self, prefix: str) -> str:
        """Return the keys of the commands with names that begin with `prefix`."""
        words = ("flows", "trace", "capture")
        keys = (self._screen.console.key_of(f"{prefix}.{word}") for word in words)
        return ", ".join(f"{key} {word}" for key, word in zip(keys, words, strict=True))

    def show_flows(self) -> None:
        screen = self._screen
        # Of all flows: no group stays open.
        lines = f"flow.view conversations\nflow.filter {self._filter()}"
        screen.app.call_later(screen.console.action_command, lines)

    def trace(self) -> None:
        # Imported here: the first paint needs no tracing.
        from probes.monitor.control.tracing import top_flows

        found = top_flows(self._screen.console.frame.flows.rows, [self._filter()])
        if not found:
            raise UsageError(
                "this host answers none of these flows",
                hint="a path is traced by packets that this host sends",
            )
        self._screen.trace(PathKey(*found[0]))

    def capture(self) -> None:
        """Ask before other flows are no longer counted."""
        example = "tcp port:443"
        self._screen.prompt.ask("flow.capture", "Count only", example, self._filter())

    do_trigger_flows = do_event_flows = show_flows
    do_trigger_trace = do_event_trace = trace
    do_trigger_capture = do_event_capture = capture
