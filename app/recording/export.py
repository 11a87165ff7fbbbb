"""Tables of a recording: the bytes that the run would have written with -o."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import quote

from app.exporters.host import ExportHost, make
from app.exporters.kinds import parse
from app.exporters.ledger import Ledger
from app.outputs.owners.owner_join import with_owners
from app.outputs.view import is_table
from app.outputs.views import VIEWS
from app.recording.frames import DamageError, FrameKind
from app.recording.plane import RecordedPlane
from app.recording.reader import Recording
from app.recording.segment import RecordedState
from bpf.errors import ProbedeckError
from probes.reports import OutputConfig
from probes.snapshot import Item, Snapshot
from probes.sockets.records import PROBE as SOCKETS

PARQUET = "parquet"


class RecordedItems:
    """The items of a recording between two times, while its plane has the state of each moment.

    Windows of flows come as OwnedFlows if their owners were known: these stand before them.
    """

    def __init__(self, recording: Recording, begin_ns: int, end_ns: int) -> None:
        """Times are UTC."""
        self.plane = RecordedPlane()
        self._recording, self._begin_ns, self._end_ns = recording, begin_ns, end_ns

    def __iter__(self) -> Iterator[Item]:
        parts: dict[int, bytes] = {}
        tables: dict[str, Snapshot] = {}
        for item in self._recording.items(self._begin_ns, self._end_ns):
            if isinstance(item, RecordedState):
                parts[item.part] = item.text
                self.plane.turn_to(dict(parts))
                continue
            if isinstance(item, Snapshot) and item.probe == SOCKETS:
                tables[item.metric] = item
            elif is_table(item, "flow", "") and tables:
                item = with_owners(item, tables.values())
            yield item


def tables_of(recording: Recording) -> tuple[str, ...]:
    """Return the tables that a recording has, as `--views` names them; groups are left out."""
    present: set[tuple[str, str]] = set()
    for segment in recording.segments():
        entries = segment.entries()
        for number in sorted(set(entries["table"][entries["kind"] == FrameKind.TABLE].tolist())):
            try:
                present.add(segment.table(number).name)
            except DamageError:
                continue  # reading its windows names the damage
        segment.close()
    return tuple(
        name
        for name, view in VIEWS.items()
        if view.make is None and (not view.probe or (view.probe, view.table) in present)
    )


def write_parquet(items: RecordedItems, directory: str, tables: Sequence[str]) -> None:
    """Write Parquet files, as `--output parquet:DIR` does. Raises ProbedeckError."""
    config = parse(OutputConfig(f"{PARQUET}:{quote(directory)}", "", {"tables": ",".join(tables)}))
    lost: list[str] = []

    def lose(rows: int, reason: str) -> None:
        lost.append(f"{rows} rows: {reason}")

    exporter = make(ExportHost(config, items.plane, Ledger(), lose))
    exporter.open()
    try:
        for item in items:
            if exporter.records(item):
                exporter.deliver(item, 0)
    finally:
        exporter.close()
    if lost:
        raise ProbedeckError(f"could not be written: {', '.join(lost)}")
