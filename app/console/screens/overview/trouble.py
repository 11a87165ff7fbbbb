"""Sentences about trouble and their kinds: outputs that fail, connections that wait."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from app.console.live.frames import Frame
from app.console.live.owners import owned
from app.console.screens.flows.owners import RowOwner
from app.console.screens.paths.model import Paths
from bpf.quantities import age, counted, si
from probes.filter.hosts import address_text
from probes.path.records import PathRowKind
from probes.reports import SOURCE, OutputState, OutputStatus
from probes.sockets.records import Limit, Owned
from probes.sockets.words import limit_text
from widgets.tones import Tone


class Kind(IntEnum):
    """Kinds of trouble, the largest first."""

    ENDED = 0
    LOSES = 1
    LOSS = 2
    OVERLOAD = 3
    QUEUE = 4
    SILENT = 5
    UNDELIVERED = 6
    ERROR = 7
    FIRES = 8
    WARNING = 9
    LIMITED = 10
    STRAIN = 11
    PAST = 12


@dataclass(frozen=True, slots=True)
class Trouble:
    """One sentence, and the row of another screen that it is about, or a command."""

    kind: int
    """One of Kind."""
    size: float
    """Size within its kind."""
    text: str
    tone: Tone
    screen: str
    row: Hashable | None
    """Key of the row, for the screen's `point_at`."""
    clauses: tuple[str, ...] = ()
    """Further parts of the sentence, the most important first: shown if there is room."""
    about: Hashable = None
    """Subject, if the row does not identify it; the numbers may change, the subject stays."""
    events: tuple[str, str] = ("", "")
    """Source and subject of events that this sentence replaces."""
    lasting: str = ""
    """The clause about the time since its beginning."""
    command: str = ""
    """The command to which it leads if no screen has a row about it."""

    @property
    def key(self) -> Hashable:
        """Identity of the sentence from one frame to the next."""
        return self.kind, self.row if self.about is None else self.about

    def sentence(self, cells: int) -> str:
        """Return the text, and the clauses for which `cells` characters have room."""
        text = self.text
        for clause in self.clauses:
            if len(text) + 2 + len(clause) <= cells:
                text += f", {clause}"
        return text

    @property
    def timeless(self) -> str:
        """The whole sentence without the time since its beginning."""
        return ", ".join((self.text, *(one for one in self.clauses if one != self.lasting)))

    @property
    def is_present(self) -> bool:
        """Whether it goes on."""
        return self.kind != Kind.PAST


def output_troubles(outputs: Iterable[OutputStatus], utc_ns: int) -> Iterator[Trouble]:
    """Yield a sentence for each output that fails at `utc_ns`; it leads to the list of outputs."""
    for one in outputs:
        if one.state is not OutputState.FAILING:
            continue
        lasting = f"for {age(max(0, utc_ns - one.since_utc_ns) / 1e9)}"
        clauses = [f"{_records(one.lost)} undelivered", lasting] if one.lost else [lasting]
        if one.queued:
            clauses.append(f"{_records(one.queued)} waiting")
        tone = Tone.BAD if one.lost else Tone.WARN
        text = f"Output {one.name} fails: {one.reason}"
        about = SOURCE, one.name
        yield Trouble(
            Kind.UNDELIVERED, one.lost, text, tone, "", None, tuple(clauses), about, about,
            lasting, "output.list",
        )  # fmt: skip


def _records(count: int) -> str:
    return counted(count, "record") if count < 1000 else f"{si(count)} records"


_LISTEN = 10
"""TCP state of a listener (include/net/tcp_states.h)."""
_LASTS_S = 5
"""A verdict that is younger is no news."""
_MOST = 3
_WAITS = {
    Limit.RECEIVER: "waits for {far}", Limit.QUEUE: "waits for {far}",
    Limit.LOSS: "waits for {far}", Limit.READS_SLOWLY: "reads slowly from {far}",
    Limit.LOST_BEFORE: "waits for {far}", Limit.NO_ANSWER: "waits for {far}",
}  # fmt: skip
_HOPS = {Limit.QUEUE: PathRowKind.QUEUE, Limit.LOSS: PathRowKind.LOSS}


def connection_troubles(frame: Frame, paths: Paths) -> list[Trouble]:
    """Return the worst verdicts, one for each process and limit, and the full accept queues."""
    if not len(frame.owners.sockets):
        return []
    of = owned(frame.flows, frame.owners)
    return [*_limited(frame, of, paths), *_full_queues(of)]


def link_troubles(late: float) -> Iterator[Trouble]:
    """Yield a sentence about a link that delays windows by `late` seconds; 0: it does not."""
    if late:
        yield Trouble(
            Kind.SILENT, late,
            f"The link is slow: windows come {age(late)} late, with the largest flows only",
            Tone.WARN, "events", None,
        )  # fmt: skip


def _limited(frame: Frame, of: Owned, paths: Paths) -> Iterator[Trouble]:
    sockets = of.sockets
    wrong = np.isin(sockets["limit"], list(_WAITS)) & (sockets["limit_s"] >= _LASTS_S)
    places = np.flatnonzero(wrong)
    moved = sockets["sent"][places] + sockets["received"][places]
    places = places[np.argsort(moved, kind="stable")[::-1]]
    # The largest connection of each process and limit speaks for the others.
    pairs = sockets["owner"][places].astype("i8") << 8 | sockets["limit"][places]
    _, first, counts = np.unique(pairs, return_index=True, return_counts=True)
    for at in np.argsort(first)[:_MOST]:
        place = int(places[first[at]])
        # All flows of a socket may have left.
        flows = frame.flows.rows["id"][of.at == place]
        flow = int(flows[0]) if len(flows) else None
        yield _sentence(frame, RowOwner(of, place), flow, paths, int(counts[at]))


def _sentence(frame: Frame, row: RowOwner, flow: int | None, paths: Paths, times: int) -> Trouble:
    socket, limit = row.socket, row.limited
    far = address_text(socket["far"].tobytes(), int(socket["version"]))
    text = f"{_name(row)} {_WAITS[limit].format(far=far)}: {limit_text(socket)}"
    if limit in _HOPS:
        spells = paths.spells(_HOPS[limit])
        hops = [one.hop for one in spells if one.destination == far and not one.ended_ns]
        text += f" at hop {hops[0]}" if hops else ""
    lasting = f"for {age(int(socket['limit_s']))}"
    clauses = [lasting] + ([f"and {counted(times - 1, 'other connection')}"] if times > 1 else [])
    about = "limit", int(socket["owner"]), int(limit)
    return Trouble(
        Kind.LIMITED, float(socket["sent"] + socket["received"]), text, Tone.WARN, "flows", flow,
        tuple(clauses), about, lasting=lasting,
    )  # fmt: skip


def _full_queues(of: Owned) -> Iterator[Trouble]:
    sockets = of.sockets
    full = (sockets["state"] == _LISTEN) & (sockets["wqueue"] > 0)
    full &= sockets["rqueue"] >= sockets["wqueue"]
    for place in np.flatnonzero(full).tolist():
        row = RowOwner(of, place)
        port, waiting = int(row.socket["near_port"]), int(row.socket["rqueue"])
        text = f"{_name(row)} accepts too slowly: the queue of port {port} is full"
        clauses = (f"{counted(waiting, 'connection')} wait{'s' if waiting == 1 else ''}",)
        yield Trouble(
            Kind.LIMITED, np.inf, text, Tone.WARN, "flows", None, clauses, ("accept", port)
        )


def _name(row: RowOwner) -> str:
    """`nginx (web.service)`."""
    name = row.name or "A process"
    return f"{name} ({row.place})" if row.place and row.place != name else name
