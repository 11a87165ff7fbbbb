"""Sentences about connections that wait, and about full accept queues."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.console.live.owners import owned
from app.console.live.state import Frame
from app.console.screens.flows.owners.cells import RowOwner
from app.console.screens.overview.trouble import Kind, Trouble
from app.console.screens.paths.model import Paths
from probes.filter.network import address_text
from probes.path.records import PathRowKind
from probes.sockets.filter import Owned
from probes.sockets.records import Limit
from probes.sockets.words import limit_text
from widgets.format import age, counted
from widgets.tones import Tone

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
        yield _sentence(frame, RowOwner(of, place), _flow_of(frame, of, place), paths,
                        int(counts[at]))  # fmt: skip


def _flow_of(frame: Frame, of: Owned, place: int) -> int | None:
    """Return the id of a flow of a socket; None if all of them have left."""
    found = np.flatnonzero(of.at == place)
    return int(frame.flows.rows["id"][found[0]]) if len(found) else None


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
