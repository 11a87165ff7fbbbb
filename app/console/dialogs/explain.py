"""The page that explains a flow by its owner, its limit and the hop where its packets wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text
from textual.binding import Binding

from app.console.dialogs.boxes import HelpBox
from app.console.protocol import Console, on_host
from app.console.screens.paths.hop import PathKey
from app.console.tasks import Task
from app.explain import Explanation, explain
from app.explain.page import parts, traffic
from app.outputs.networks import RouterFacts
from bpf.arrays import Row
from bpf.errors import ProbedeckError
from probes.flow.grouping import GROUP

_PERIOD = 1.0
"""Seconds between two explanations of the present."""
_TITLES = 6
"""Cells of the titles of the parts."""
_FRAME = 4
"""Lines of the box, and of the sentence with an empty line after it."""
_HOPS_FROM = 3
"""Fewer hops than this are never left out."""


class ExplainPage(HelpBox):
    """The explanation of a conversation, renewed each second; tracing its path begins with it.

    It explains the moment of the frame: a paused console has the numbers of the past.
    """

    BINDINGS = [
        Binding("escape,q,enter", "dismiss", "Close"),
        Binding("T,p", "path", "Path"),
        Binding("w", "packets", "Packets"),
    ]
    DEFAULT_CSS = """
    ExplainPage > .box { width: 110; }
    """

    def __init__(
        self, console: Console, conversation: Row[GROUP], path: PathKey | None, untraced: str,
        host: str = "",
    ) -> None:  # fmt: skip
        """`conversation` is a row of dtype GROUP. `path` is to be traced; None if it cannot be, or
        may not be, for the reason `untraced`. `host` sees the conversation, of several hosts."""
        super().__init__()
        self._front, self._conversation, self._host = console, conversation, host
        self._path, self._untraced = path, untraced
        self._asked_ns = 0
        """End of the window of the last explanation, CLOCK_MONOTONIC."""
        self.explanation: Explanation | None = None

    @property
    def sentence(self) -> str:
        """The first sentence; empty before the answer."""
        return self.explanation.sentence if self.explanation is not None else ""

    def on_mount(self) -> None:
        self.title_text = f"Who, why, where{on_host(self._host)}"
        self._box.border_title = self.title_text
        self._trace()
        self._ask()
        self.set_interval(_PERIOD, self._ask)

    def on_resize(self) -> None:
        self.renew()

    def _trace(self) -> None:
        path, console = self._path, self._front
        if path is None:
            return

        def failed(error: ProbedeckError) -> None:
            self._untraced = str(error)

        task = Task(f"tracing {path.destination}{on_host(path.host)}")
        console.tasks.run(
            console.app, task,
            lambda: console.hosts.plane(path.host).trace(path.destination, path.flow),
            lambda _: None, failed, of_command=False,
        )  # fmt: skip

    def _ask(self) -> None:
        console, frame = self._front, self._front.time.frame.of(self._host)
        if frame is None:
            missing = f"{self._host} is missing: this is its last explanation"
            self._box.border_title = f"{self.title_text} ({missing})"
            return
        self._box.border_title = self.title_text
        now_ns = frame.flows.now_ns
        if now_ns == self._asked_ns:
            return
        self._asked_ns = now_ns

        def ask() -> Explanation:
            history = console.hosts.plane(self._host).history
            items = [one for one in history.snapshots() if one.end_ns <= now_ns]
            return explain(self._conversation, items, describe, self._untraced)

        def describe(address: str) -> RouterFacts:
            found = console.names.of(address)
            return RouterFacts(name=found.text if found is not None else "")

        def done(found: Explanation) -> None:
            self.explanation = found
            self.renew()

        console.tasks.run(
            self, Task("", asked=False), ask, done, console.complain, of_command=False
        )

    def _tell_more(self) -> None:
        super()._tell_more()
        self._box.border_subtitle = f"T: path, w: packets, {self._box.border_subtitle}"

    def action_path(self) -> None:
        """Turn to the path on its screen."""
        if self._path is None:
            self.notify(self._untraced or "this flow has no path to trace", markup=False)
            return
        self.dismiss()
        self.app.call_later(self._front.turn_to, "paths", (self._path, None))

    def action_packets(self) -> None:
        """Keep and show the packets of the row under the cursor: the conversation's."""
        self.dismiss()
        self.app.call_later(self._front.action_command, "flow.packets")

    def text(self) -> Iterable[Text | Table]:
        found = self.explanation
        if found is None:
            yield Text("Reading the last minute ...", "dim")
            return
        yield Text(found.sentence, "bold")
        yield Text("")
        yield self._page(found)

    def _page(self, found: Explanation) -> Table:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="bold", width=_TITLES)
        grid.add_column(overflow="fold")
        grid.add_row(Text("Flow"), Text(traffic(found)))
        sections = {title.split()[0]: lines for title, lines in parts(found)}
        others = sum(map(len, sections.values())) - len(sections["Where"])
        room = self.app.size.height - _FRAME - others - 1
        sections["Where"] = list(_shortened(sections["Where"], found, room))
        for title, lines in sections.items():
            for number, line in enumerate(lines):
                grid.add_row(Text(title if not number else ""), Text(line))
        return grid


def _shortened(lines: Sequence[str], found: Explanation, room: int) -> Iterator[str]:
    """Yield the sentence about the path, and hops around the queue, as many as `room` allows."""
    sentence, *hops = lines
    yield sentence
    most = max(_HOPS_FROM, room - 2)
    if len(hops) <= most:
        yield from hops
        return
    # With a line that counts the others.
    worst = next((n for n, hop in enumerate(found.where.hops) if hop.hop == found.where.hop),
                 len(hops) - 1)  # fmt: skip
    first = max(0, min(worst - most // 2, len(hops) - most))
    yield from hops[first : first + most]
    yield f"{len(hops) - most} more hops: T shows the path"
