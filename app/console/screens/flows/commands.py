"""Commands of screen 3: its views, the counted flows, and the path of a row."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from app.commands.flow_view import GROUP_NOUNS, INTERFACES, NODES, QUIET_NS, Grouping
from app.console.live.flows import LIVE
from app.console.protocol import on_host
from app.console.screen import ConsoleScreen
from app.console.screens.flows.group_columns import SPECS, has_interfaces
from app.console.screens.flows.paths import path_of
from app.console.screens.flows.rows import ShownFlows
from app.console.screens.flows.selection import Opened, Selection
from app.console.screens.paths.hop import PathKey
from app.console.tasks import Task
from app.explain.material import ends_of
from bpf.arrays import Array, Rows
from bpf.errors import ProbedeckError, UsageError
from bpf.quantities import age, duration
from probes.flow.filter import FlowFilter
from probes.flow.grouping import group
from probes.reports import Replacement
from probes.snapshot import Event

if TYPE_CHECKING:
    from app.console.dialogs.explain import ExplainPage


class ViewCommands:
    """Turns between views, and opens groups."""

    def __init__(
        self, screen: ConsoleScreen, shown: Selection, chosen: Callable[[], ShownFlows | None]
    ) -> None:
        """`chosen` returns the row under the cursor."""
        self._screen, self._shown, self._chosen = screen, shown, chosen

    def do_flow_view(self, view: str = "", by: str = "") -> None:
        if view:
            by_view = Grouping.parse(f"{view} {by}")
            self._shown.opened = None
            self._turn_to(by_view)
        else:
            self._turn(1)

    def do_flow_view_back(self) -> None:
        self._turn(-1)

    def do_flow_sort(self, column: str = "") -> None:
        """Sort the view, or the first view that has the column."""
        fitting = [kind for kind, spec in SPECS.items() if column in spec.sortable]
        known = self._shown.by.kind in fitting or self._screen.console.time.compared is not None
        if fitting and not known:
            self._turn_to(Grouping(fitting[0]))
        self._screen.do_sort(column)

    def do_flow_group(self, by: str) -> None:
        self.do_flow_view(GROUP_NOUNS[by])

    def do_flow_hosts(self) -> None:
        """Show the hosts with the highest rates, and the largest one under the cursor."""
        self._turn_to(Grouping("hosts"))
        table = self._screen.table_with("rate")
        table.order_first("rate")
        table.action_top()

    def do_flow_top(self) -> None:
        self._screen.table_with().action_top()

    def do_flow_names(self) -> None:
        names = self._screen.console.names
        names.enabled = not names.enabled
        self._screen.show()

    def do_flow_open(self) -> None:
        screen = self._screen
        if self._shown.by.is_finest:
            screen.app.call_later(screen.console.action_command, "flow.explain")
        elif (group := self._chosen()) is not None:
            self._shown.open(Opened.of(group))
            screen.show()
            screen.table_with().action_top()

    def _turn(self, by: int) -> None:
        frame = self._screen.console.time.frame
        labels = [*frame.owners.kinds, *[NODES] * bool(frame.flows.nodes)]
        labels += [INTERFACES] * has_interfaces(frame.flows.rows)
        self._turn_to(self._shown.by.turned(by, labels))

    def _turn_to(self, by: Grouping) -> None:
        self._shown.turn_to(by)
        self._screen.show()


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


class TraceCommands:
    """Traces the path of the row under the cursor."""

    def __init__(self, screen: ConsoleScreen, flows: Callable[[], Array]) -> None:
        """`flows` returns the flows of the row under the cursor, dtype LIVE (n,)."""
        self._screen, self._flows = screen, flows
        self._asked: Hashable = None
        """The row that was clicked, and may be traced by another click."""
        self._page: ExplainPage | None = None
        """The last page."""

    @property
    def explanation(self) -> str:
        """First sentence of the page that explains a flow; empty if none is open."""
        page = self._page
        return page.sentence if page is not None and page.is_attached else ""

    def is_wanted(self, row: Hashable) -> bool:
        """Whether to trace a row that was clicked twice: ask first, as tracing sends packets."""
        wanted, self._asked = row == self._asked, row
        if not wanted:
            text = "Tracing sends packets along the flow's path: double-click again, or press Enter"
            self._screen.notify(text, markup=False)
        return wanted

    def do_flow_explain(self) -> None:
        # Imported here: the first paint needs no explanation.
        from app.console.dialogs.explain import ExplainPage

        screen, flows = self._screen, self._flows()
        if not len(flows):
            return
        host = screen.console.time.frame.flows.node(int(flows["id"][0]))
        path, untraced = None, screen.console.writes_refused
        try:
            untraced = untraced or screen.console.hosts.plane(host).read_only
            path = None if untraced else self._path(flows)
        except UsageError as error:
            untraced = str(error)
        (conversation,) = group(flows[:1], "conversations").rows
        self._page = ExplainPage(screen.console, conversation, path, untraced, host)
        screen.app.push_screen(self._page)

    def do_flow_packets(self) -> None:
        """Keep the packets of the row's flow, both ways, and show them."""
        from app.console.dialogs.packets import PacketsBox, both_ways

        if not len(flows := self._flows()):
            return
        console = self._screen.console
        plane = console.hosts.plane(console.time.frame.flows.node(int(flows["id"][0])))
        (conversation,) = group(flows[:1], "conversations").rows
        wanted = both_ways(ends_of(conversation))

        def show(_: object) -> None:
            self._screen.app.push_screen(PacketsBox(console, plane, wanted))

        task = Task("the packet ring")
        console.tasks.run(
            self._screen.app, task, lambda: plane.keep_packets(wanted), show, console.complain,
            of_command=True,
        )  # fmt: skip

    def do_flow_trace(self) -> None:
        if len(flows := self._flows()):
            self._screen.trace(self._path(flows))

    def _path(self, flows: Rows[LIVE]) -> PathKey:
        """Return the path of flows (n,) of a row. Raises UsageError if it cannot be traced."""
        screen = self._screen
        row = _traceable(flows)
        found = replace(path_of(row), host=screen.console.time.frame.flows.node(int(row["id"])))
        # A flow may have packets in only one direction.
        idle_ns = int(screen.console.time.frame.flows.idle_ns(flows["last_ns"]).min())
        if idle_ns > QUIET_NS:
            text = f"The flow is idle for {age(idle_ns / 1e9)}: probes go out only with its packets"
            screen.notify(text, severity="warning", markup=False)
        return found


def _traceable(flows: Rows[LIVE]) -> Any:
    """Return the fastest of `flows` (n,) that can be traced; the fastest of all if none can."""
    order = flows[flows["bit_rate"].argsort()[::-1]]
    for row in order:
        try:
            path_of(row)
        except UsageError:
            continue
        return row
    return order[0]
