"""Tables of a controller's snapshots and events."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from app.outputs.networks import Describe, nothing_known
from app.outputs.owners.owner_join import ItemStream
from app.outputs.path_views import described
from app.outputs.sink import Sink
from app.outputs.views import VIEWS, with_prefixes
from app.run.item_loop import Mailbox
from app.run.options import OutputSpec
from bpf.errors import ProbedeckError
from probes.control.controller import Controller
from probes.snapshot import REMOVED, Event, Item, Snapshot

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.reports import ProbeInfo


class TableSource(Protocol):
    """The source of the items that become tables: a controller or a recording."""

    unwritten: Mapping[str, int]
    """Rows that could not be written, by table."""

    def publish(self, item: Item) -> None:
        """Tell of tables that fail and recover."""

    def probes(self) -> Sequence[ProbeInfo]:
        """List the probes; their configurations have the formats of tables."""


class TableWriter:
    """Writes a controller's items into tables while the context manager `sink` is open.

    A table that fails or recovers is an event of the controller, which also gets the number of
    lost rows.
    """

    def __init__(
        self, output: OutputSpec, probes: Iterable[ProbeConfig], controller: TableSource,
        describe: Describe = nothing_known,
    ) -> None:  # fmt: skip
        """`probes` are the probes that run at first; `describe` adds facts about routers."""
        self._format = output.format
        self._usual = output.format or "csv"
        self._controller = controller
        self._formats = self._formats_of(probes)
        self.filtering = output.filtering()
        if words := self.filtering.words(output.views):
            print(f"probedeck: {words}", file=sys.stderr, flush=True)
        views = [
            described(with_prefixes(VIEWS[name], output.prefixes), describe)
            for name in output.views
        ]
        self.sink = Sink(
            output.out, self._usual, views,
            metrics=output.metrics, formats=self._formats, keep=self.filtering.kept,
            report=controller.publish,
        )  # fmt: skip

    def _formats_of(self, probes: Iterable[ProbeConfig]) -> dict[str, str]:
        return {probe.name: self._format or probe.format for probe in probes}

    def check(self) -> None:
        """Raise ProbedeckError if a table lacks rows."""
        if missing := self.sink.incomplete():
            raise ProbedeckError(f"could not be written: {', '.join(missing)}")

    def write(self, item: Item) -> None:
        """Write the rows of an item. Raises BrokenPipeError for a pipe without a reader."""
        formats = self._formats
        if isinstance(item, Snapshot) and item.is_metric and item.probe not in formats:
            # The API added this probe. A probe that has gone again gets the usual format.
            formats.update(self._formats_of(one.config for one in self._controller.probes()))
            formats.setdefault(item.probe, self._usual)
        self.sink.write(item)
        if isinstance(item, Event) and item.text == REMOVED:
            self.sink.end_probe(item.source)
            formats.pop(item.source, None)
        self._controller.unwritten = self.sink.lost


@contextlib.contextmanager
def writing(
    output: OutputSpec, probes: Iterable[ProbeConfig], controller: Controller, stream: ItemStream,
    describe: Describe = nothing_known,
) -> Iterator[None]:  # fmt: skip
    """Write tables in a thread during the block. Raises ProbedeckError if rows were lost."""
    mailbox = Mailbox()

    def write_all() -> None:
        try:
            with tables.sink:
                for item in mailbox.until_stopped(float("inf")):
                    tables.write(item)
                for item in mailbox.rest():
                    tables.write(item)
        finally:
            mailbox.let_all_in()

    tables = TableWriter(output, probes, controller, describe)
    mailbox.follow(controller, stream)
    writer = threading.Thread(target=write_all, name="tables")
    writer.start()
    try:
        yield
    finally:
        mailbox.stop()
        writer.join()
    tables.check()
