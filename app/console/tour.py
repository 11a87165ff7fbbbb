"""The tour: steps that explain the keys, and the conditions that complete them.

It goes over the lab in about five minutes, and ends with an edit swapped into the kernel and the
path of a flow traced. Each step may be skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.text import Text
from textual.widgets import Static

from app.console.protocol import Console
from app.console.screen import ConsoleScreen
from widgets.terminal.keybar import KeyBar

Done = Callable[[Console], bool]


@dataclass(frozen=True, slots=True)
class TourStep:
    """One thing to do."""

    title: str
    text: str
    """Its explanation, with keys in backquotes."""
    done: Done
    """Whether the user has done it."""


def _on(mode: str) -> Done:
    return lambda console: console.app.current_mode == mode


def _filtered(console: Console) -> bool:
    screen = console.app.screen
    if not (isinstance(screen, ConsoleScreen) and screen.MODE == "flows"):
        return False
    return bool(screen.states()["flow.filter"])


def _swapped(console: Console) -> bool:
    last = console.time.state.last
    tables = (*console.time.frame.metrics, *([last] if last is not None else []))
    return any(table.generation > 1 for table in tables)


STEPS = (
    TourStep(
        "A network to look at",
        "You sit on a client behind six routers, which loads pages, calls and asks for names all "
        "the time. Nothing here leaves this machine. `3` shows its flows.",
        _on("flows"),
    ),
    TourStep(
        "Flows",
        "A row is a flow, counted in the kernel. `s` sorts by the next column, `S` turns the order "
        "round. Now filter: `/`, then type  tcp rate>1k  and `enter`.",
        _filtered,
    ),
    TourStep(
        "Freeze",
        "`esc` takes the filter away. `space` freezes what you see; counting goes on. Try it.",
        lambda console: console.time.paused,
    ),
    TourStep(
        "Trace a flow",
        "`space` again goes on. `j` and `k` move to a TCP flow with some rate, `enter` traces the "
        "path of its packets. The flow of port 5432 lasts.",
        _on("paths"),
    ),
    TourStep(
        "Its path",
        "Each row is a router that copies of the flow's own packets are sent to; the bars are "
        "round-trip times. When an upload fills a queue, State says at which hop. `enter` looks "
        "closer, `esc` closes. Then `4`.",
        _on("triggers"),
    ),
    TourStep(
        "Policies",
        "A policy wakes programs when its condition holds: `busy` has woken accounting. `enter` "
        "shows its history. `5` has all programs, and their sources.",
        _on("programs"),
    ),
    TourStep(
        "Edit what runs",
        "`j` to packet-counter, `enter` into its source. Change what it counts: after  "
        "count->packets  make  packets_of(ctx)  a  2 * packets_of(ctx).  Or only a comment.",
        lambda console: bool(console.unsaved),
    ),
    TourStep(
        "Swap it in",
        "`f5` compiles and verifies, `f8` swaps it into the kernel: no packet is lost, and the "
        "counters stay. `f9` would bring the last program back.",
        _swapped,
    ),
    TourStep(
        "That is all",
        "Everything has a name: `:` takes commands, `ctrl+p` finds them, `?` has a screen's keys "
        "and `f1` explains what has the focus. `Q` records a tape, `@` plays it. `ctrl+n` ends "
        "this tour.",
        lambda console: False,
    ),
)


_NO_TOUR = -1
"""In place of the number of a step."""


class Tour:
    """The user's place on the tour."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._number = _NO_TOUR

    @property
    def step(self) -> TourStep | None:
        """The step of now; None while there is no tour."""
        return STEPS[self._number] if self._number != _NO_TOUR else None

    def offers(self, command: str) -> bool:
        """Whether a command means anything: commands of the tour do during a tour only."""
        return self._number != _NO_TOUR or not command.startswith("tour.")

    def begin(self) -> None:
        self._number = 0

    def do_help_tour(self) -> None:
        self.begin()
        self.show()

    def do_tour_next(self) -> None:
        self._skip()
        self.show()

    def do_tour_end(self) -> None:
        self._number = _NO_TOUR
        self.show()

    def _skip(self) -> None:
        if self._number != _NO_TOUR:
            self._number = self._number + 1 if self._number + 1 < len(STEPS) else _NO_TOUR

    def show(self) -> None:
        """Go on if the user has done the step, and show the step in front."""
        if self.step is not None and self.step.done(self._console):
            self._skip()
        screen = self._console.app.screen
        if not (isinstance(screen, ConsoleScreen) and screen.is_mounted):
            return
        panel = next(iter(screen.query(TourPanel)), None)
        if panel is None and self.step is not None:
            panel = TourPanel()
            screen.mount(panel, before=screen.query_one(KeyBar))
        if panel is not None and self.step is not None:
            panel.show(f"Tour {self._number + 1}/{len(STEPS)}: {self.step.title}", self.step.text)
        elif panel is not None:
            panel.remove_class("open")


class TourPanel(Static):
    """The step, above the footer."""

    DEFAULT_CSS = """
    TourPanel {
        display: none; dock: bottom; height: auto; margin-bottom: 1; padding: 0 1;
        background: $boost; border-top: solid $primary;
    }
    TourPanel.open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False)
        self._shown = ""

    def show(self, title: str, text: str) -> None:
        self.add_class("open")
        if self._shown != title:
            self._shown = title
            self.border_title = f"{title} (ctrl+n goes on)"
            parts = enumerate(text.split("`"))
            styled = ((part, "bold reverse" if n % 2 else "") for n, part in parts)
            self.update(Text.assemble(*styled))
