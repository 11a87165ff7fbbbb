"""The list of paths, with flows of the same way in one row."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import partialmethod
from itertools import groupby
from typing import cast

from app.console.host_names import Names
from app.console.screens.paths.columns import DESTINATIONS
from app.console.screens.paths.hop import PathKey
from app.console.screens.paths.hosts import PathHosts, shown_paths
from app.console.screens.paths.rows import ListedPath, path_columns, path_rows
from app.console.tables.sorted_table import ArrayRows, SortedTable
from bpf.errors import UsageError
from probes.filter import Filter


class PathList(SortedTable):
    """The paths that pass a filter, and the chosen one.

    Flows of the same way are one row; they are listed below it if the user opened it, and while one
    of them is chosen. Its `do_` methods are commands of the screen.
    """

    def __init__(self, hosts: PathHosts, show: Callable[[], None]) -> None:
        """`show` shows the screen, and calls `follow`."""
        super().__init__(DESTINATIONS, id="paths")
        self._hosts, self._show = hosts, show
        self._names: Names
        self.choice: PathKey | None = None
        """None without a path."""
        self.passing: tuple[PathKey, ...] = ()
        """The paths that pass, folded or not."""
        self._opened: set[PathKey] = set()
        """Rows whose flows the user lists."""
        self._wanted: PathKey | None = None
        """Target of the cursor; it may appear later."""
        self._drawn: tuple[object, ...] = ()
        """State for which it was drawn."""
        self.whole = self._unfolded

    def want_path(self, key: PathKey) -> None:
        """Move the cursor to a path, at once or when it appears."""
        self._wanted = key

    def follow(self, passing: Filter, names: Names) -> None:
        """Show the present paths that pass, if anything in the list changed."""
        self._names = names
        if self._wanted is not None:
            self._wanted = self._hosts.located(self._wanted)
        if self._drawn == self._state(passing):
            return
        self.passing = shown_paths(self._hosts, passing, names)
        rows = path_rows(self._hosts, folded(self._hosts, self.passing, self._is_open), names)
        self.styles.height = 1 + rows.rows
        self.columns = path_columns(rows, [host for host in self._hosts.models if host])
        self.fill(rows)
        wanted = self._wanted
        if wanted is not None and (nearest := self._nearest(wanted)) is not None:
            index = self.source.index(nearest)
            if index is not None and index != self.cursor_index:
                self.move_to(index)
            if nearest == wanted:
                self._wanted = None
        key = self.cursor_key
        self.choice = key if isinstance(key, PathKey) else None
        self._drawn = self._state(passing)

    def _nearest(self, wanted: PathKey) -> PathKey | None:
        return self._hosts.of(wanted).nearest(wanted)

    def turn_choice(self, key: Hashable) -> bool:
        """Take the row under the cursor as the choice; return whether it is another one."""
        if not isinstance(key, PathKey) or key == self.choice:
            return False
        self.choice = key
        return True

    def _state(self, passing: Filter) -> tuple[object, ...]:
        """All that the list depends on."""
        marks = passing, self._wanted, frozenset(self._opened), self._inside
        return self._hosts.edition, self._names.version, *marks

    @property
    def _inside(self) -> PathKey | None:
        """The row that stands for the chosen flow."""
        key = self._wanted or self.choice
        if key is None or key.flow is None or key.is_way:
            return None
        return fold_of(self._hosts, key)

    def _is_open(self, key: PathKey) -> bool:
        return key in self._opened or key == self._inside

    def _unfolded(self) -> ArrayRows:
        rows = (ListedPath(key, int(key.flow is not None)) for key in self.passing)
        return path_rows(self._hosts, rows, self._names)

    def _step(self, by: int) -> None:
        """Move to the next path, also to one that is folded."""
        listed = folded(self._hosts, self.passing, lambda _: True)
        rows = self.in_order(path_rows(self._hosts, listed, self._names))
        if rows.rows:
            at = (rows.index(self.choice) or 0) if self.choice is not None else 0
            self._wanted = cast("PathKey", rows.key((at + by) % rows.rows))
            self._show()

    do_path_next = partialmethod(_step, 1)
    do_path_previous = partialmethod(_step, -1)

    @property
    def is_on_fold(self) -> bool:
        """Whether the chosen row stands for several flows of the same way."""
        return self.choice is not None and self.choice == fold_of(self._hosts, self.choice)

    def do_path_fold(self) -> None:
        fold = fold_of(self._hosts, self.choice) if self.choice is not None else None
        if fold is None:
            raise UsageError("no other flow takes the same way")
        if self._is_open(fold):
            self._opened.discard(fold)
            self._wanted = fold
        else:
            self._opened.add(fold)
        self._show()


def folded(
    hosts: PathHosts, shown: Sequence[PathKey], is_open: Callable[[PathKey], bool]
) -> Iterator[ListedPath]:
    """Yield the rows of a list in which flows of the same way are one row, unless it is open.

    If a destination has one way, the row of the destination stands for its flows. A way with one
    flow is the flow.
    """
    for whole, keys in groupby(shown, key=lambda key: key.whole):
        head, *flows = keys
        ways = hosts.of(whole).ways(whole.destination)
        if not flows:
            yield ListedPath(head)
            continue
        if len(ways) == 1:
            yield ListedPath(head, 0, len(flows), is_open(head))
            yield from (ListedPath(flow, 1) for flow in flows if is_open(head))
            continue
        known = sum(way.is_known for way in ways)
        yield ListedPath(head, about=f"{known} ways" if known > 1 else "")
        passing = {flow.flow: flow for flow in flows}
        for way in ways:
            members = [passing[flow] for flow in way.flows if flow in passing]
            if len(members) == 1:
                yield ListedPath(members[0], 1)
            elif members:
                key = replace(whole, flow=way.flows[0], is_way=True)
                yield ListedPath(key, 1, len(members), is_open(key), way.branch)
                yield from (ListedPath(flow, 2) for flow in members if is_open(key))


def fold_of(hosts: PathHosts, key: PathKey) -> PathKey | None:
    """Return the folded row that stands for a path; None if the path has its own row."""
    ways = hosts.of(key).ways(key.destination)
    if len(ways) == 1:
        return key.whole if len(ways[0].flows) > 1 else None
    for way in ways:
        if key.flow in way.flows and len(way.flows) > 1:
            return replace(key, flow=way.flows[0], is_way=True)
    return None
