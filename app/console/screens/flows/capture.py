"""The command that chooses the flows that the flow probe counts, on one host or on all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from app.console.protocol import on_host
from app.console.screen import ConsoleScreen
from app.console.tasks import Task
from bpf.errors import ProbedeckError
from bpf.quantities import duration
from probes.control_plane import Replacement
from probes.flow.filter import FlowFilter
from probes.snapshot import Event

_EXAMPLE = "tcp port:443"


class CaptureCommand:
    """Counts only some flows: on the host of the chosen row, or by a whole line on all hosts."""

    def __init__(
        self, screen: ConsoleScreen, command: str, host: Callable[[], str],
        first_text: Callable[[str], str],
    ) -> None:  # fmt: skip
        """`command` is the command of the screen. `host` returns the host of the chosen row; empty
        for the only host, or for all. `first_text` returns the first text of the prompt on a host,
        or raises UsageError."""
        self._screen, self._command, self._host = screen, command, host
        self._first_text = first_text
        self._asked = ""
        """The host that the prompt is about."""

    def run(self, text: str | None = None) -> None:
        prompt, console = self._screen.prompt, self._screen.console
        if text is None:
            self._asked = host = self._host()
            several = console.hosts.several and not host
            on = f" on {len(console.hosts.planes.chosen)} hosts" if several else on_host(host)
            prompt.ask(self._command, f"Count only{on}", _EXAMPLE, self._first_text(host))
        else:
            # The cursor may move while the prompt is open.
            answers = prompt.is_open and prompt.command == self._command
            self._count_only(self._asked if answers else "", text)

    do_flow_capture = run

    def _count_only(self, host: str, text: str) -> None:
        screen = self._screen
        capture = FlowFilter.parse(text, screen.console.settings.filters)
        capture.to_c()
        # The host of the flow probe may be another one, which has no saved filters of this one.
        capture = capture.expanded if "@" in text else capture
        what = f"{capture.text or 'every flow'}{on_host(host)}"
        plane = screen.console.hosts.plane(host)

        def done(made: Replacement) -> None:
            text = f"generation {made.generation} counts {what}; it took {duration(made.seconds)}"
            screen.notify(text, markup=False)

        def failed(error: ProbedeckError) -> None:
            screen.console.plane.publish(Event.now("error", "flow", str(error)))
            screen.console.complain(error)

        ask = partial(plane.reconfigure, capture)
        screen.run_in_worker(ask, done, failed, task=Task(f"counting {what}"))
