"""The tour: what to press next, and how to tell that it was done.

It goes over the lab in about five minutes, and ends with an edit swapped into the kernel and the
path of a flow traced. Each step may be skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text
from textual.widgets import Static

if TYPE_CHECKING:
    from app.console.app import ConsoleApp

Done = Callable[["ConsoleApp"], bool]


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do."""

    title: str
    text: str
    """What to press; keys are in backquotes."""
    done: Done


def _on(mode: str) -> Done:
    return lambda console: console.current_mode == mode


def _filtered(console: ConsoleApp) -> bool:
    from app.console.screens.flows.screen import FlowsScreen

    return isinstance(console.screen, FlowsScreen) and bool(console.screen.filter)


def _edited(console: ConsoleApp) -> bool:
    return bool(console.unsaved)


def _swapped(console: ConsoleApp) -> bool:
    last = console.state.last
    tables = (*console.frame.metrics, *([last] if last is not None else []))
    return any(table.generation > 1 for table in tables)


STEPS = (
    Step(
        "A network to look at",
        "You sit on a client behind six routers, which loads pages, calls and asks for names all "
        "the time. Nothing here leaves this machine. `3` shows its flows.",
        _on("flows"),
    ),
    Step(
        "Flows",
        "A row is a flow, counted in the kernel. `s` sorts by the next column, `S` turns the order "
        "round. Now filter: `/`, then type  tcp rate>1k  and `enter`.",
        _filtered,
    ),
    Step(
        "Freeze",
        "`esc` takes the filter away. `space` freezes what you see; counting goes on. Try it.",
        lambda console: console.paused,
    ),
    Step(
        "Trace a flow",
        "`space` again goes on. `j` and `k` move to a TCP flow with some rate, `enter` traces the "
        "way of its packets: that of port 5432 lasts.",
        _on("paths"),
    ),
    Step(
        "Its path",
        "Each row is a router that copies of the flow's own packets are sent to; the bars are "
        "round-trip times. When an upload fills a queue, State says at which hop. `enter` looks "
        "closer, `esc` closes. Then `4`.",
        _on("triggers"),
    ),
    Step(
        "Policies",
        "A policy wakes programs when its condition holds: `busy` has woken accounting. `enter` "
        "shows its history. `5` has all programs, and their sources.",
        _on("programs"),
    ),
    Step(
        "Edit what runs",
        "`j` to packet-counter, `enter` into its source. Change what it counts: after  "
        "count->packets  make  packets_of(ctx)  a  2 * packets_of(ctx).  Or only a comment.",
        _edited,
    ),
    Step(
        "Swap it in",
        "`f5` compiles and verifies, `f8` swaps it into the kernel: no packet is lost, and what "
        "was counted stays. `f9` would bring the one before back.",
        _swapped,
    ),
    Step(
        "That is all",
        "Everything has a name: `:` takes commands, `ctrl+p` finds them, `?` has a screen's keys "
        "and `f1` explains what has the focus. `Q` records a tape, `@` plays it. `ctrl+n` ends "
        "this tour.",
        lambda console: False,
    ),
)


class Tour:
    """Where an operator is on the tour."""

    def __init__(self) -> None:
        self._number: int | None = None

    @property
    def step(self) -> Step | None:
        """The one that is shown; None while there is no tour."""
        return None if self._number is None else STEPS[self._number]

    @property
    def title(self) -> str:
        """`Tour 2/9: Flows`."""
        assert self._number is not None
        return f"Tour {self._number + 1}/{len(STEPS)}: {STEPS[self._number].title}"

    def begin(self) -> None:
        self._number = 0

    def end(self) -> None:
        self._number = None

    def skip(self) -> None:
        """Go on; after the last step it is over."""
        if self._number is not None:
            self._number = self._number + 1 if self._number + 1 < len(STEPS) else None

    def look(self, console: ConsoleApp) -> None:
        """Go on if what the step asks for has been done."""
        if self.step is not None and self.step.done(console):
            self.skip()


class TourPanel(Static):
    """The step, above the footer; hidden without a tour."""

    DEFAULT_CSS = """
    TourPanel {
        display: none; dock: bottom; height: auto; margin-bottom: 1; padding: 0 1;
        background: $boost; border-top: solid $primary;
    }
    TourPanel.open { display: block; }
    """

    def __init__(self, tour: Tour) -> None:
        super().__init__(markup=False)
        self._shown = ""
        self.show(tour)

    def show(self, tour: Tour) -> None:
        """Show the step there is, or none."""
        step = tour.step
        self.set_class(step is not None, "open")
        if step is not None and self._shown != tour.title:
            self._shown = tour.title
            self.border_title = f"{tour.title} (ctrl+n goes on)"
            self.update(_with_keys(step.text))


def _with_keys(text: str) -> Text:
    """Backquoted keys in bold."""
    parts = text.split("`")
    return Text.assemble(*((part, "bold reverse" if n % 2 else "") for n, part in enumerate(parts)))
