"""Captures of the packet ring as pcapng files, with facts about their flows as comments.

Format: draft-ietf-opsawg-pcapng. Wireshark shows a packet's comment above its headers, and finds it
by `frame.comment`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from app import VERSION
from app.files import write_atomic
from app.recording.writer import CAPTURE
from bpf.arrays import Row, Rows
from bpf.errors import UsageError
from bpf.quantities import byte_size, counted, milliseconds
from probes.filter.hosts import address_text
from probes.flow.records import FLOW, FlowDirection, hash_keys, key_words
from probes.names.learned import learned
from probes.path.records import PATHS_TABLE, PathRowKind
from probes.ring.options import BY_HAND
from probes.ring.service import Capture, said
from probes.snapshot import History
from probes.sockets.records import OWNERS_TABLE, SOCKETS_TABLE, Limit, Owned

MOST_FILES, MOST_BYTES = 1000, 1 << 30
"""Captures of a run without a recording."""
_MODE = 0o600
_SECTION, _INTERFACE, _NAMES, _PACKET = 0x0A0D0D0A, 1, 4, 6
_COMMENT, _APPLICATION, _IF_NAME, _FLAGS, _RESOLUTION = 1, 4, 2, 2, 9
_ETHERNET, _RAW = 1, 101
_ADDRESSES = 12
"""Bytes of Ethernet's addresses; the VLAN tag that a NIC took off stands behind them."""
_WINDOWS = 10
"""Windows of owners in which a flow is sought, from the newest one."""


def saver(history: History, directory: str, *, limited: bool = False) -> Callable[[Capture], str]:
    """Return a function that writes a capture into a directory, and returns its path.

    `limited`: nobody removes old captures, so after MOST_FILES or MOST_BYTES the run writes none.
    The function raises UsageError then, and if the file cannot be written.
    """
    sizes: list[int] = []
    """Bytes of each capture so far."""

    def save(capture: Capture) -> str:
        if limited and (len(sizes) >= MOST_FILES or sum(sizes) >= MOST_BYTES):
            written = f"{counted(len(sizes), 'capture')} of {byte_size(sum(sizes))}"
            hint = "with --record DIR, --keep removes old ones"
            raise UsageError(f"the run has written {written}, its limit", hint=hint)
        at = datetime.fromtimestamp(capture.ledger.end_utc_ns // 1000 / 1e6, UTC)
        name = "by-hand" if capture.name == BY_HAND else capture.name
        path = Path(directory) / f"capture-{name}-{at:%Y%m%dT%H%M%S}.{at.microsecond:06}Z{CAPTURE}"
        try:
            write_atomic(path, encoded(capture, history, path.name), mode=_MODE, directories=0o700)
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None
        sizes.append(path.stat().st_size)
        return str(path)

    return save


def encoded(capture: Capture, history: History, file: str = "") -> Iterator[bytes]:
    """Yield the blocks of a capture; `history` has the facts about its flows."""
    slots, flows = capture.packets.slots, capture.packets.flows
    about = " or ".join(capture.filters) or "every packet"
    texts = [f"{capture.name}: {about}", said(file, capture.ledger)]
    options = [
        (_COMMENT, "\n".join(texts).encode()),
        (_APPLICATION, f"probedeck {VERSION}".encode()),
    ]
    yield _block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1), options)
    links = list(zip(flows["interface"].tolist(), slots["raw"].tolist(), strict=True))
    places = {link: place for place, link in enumerate(dict.fromkeys(links))}
    for name, raw in places:
        head = struct.pack("<HHI", _RAW if raw else _ETHERNET, 0, 0)
        yield _block(_INTERFACE, head, [(_IF_NAME, name), (_RESOLUTION, b"\x09")])
    if names := _names(flows, history):
        yield _block(_NAMES, names)
    # A packet of each flow, and the flow of each packet.
    _, first, flow_of = np.unique(
        hash_keys(key_words(flows)), return_index=True, return_inverse=True
    )
    comments = _comments(capture, flows[first], history)
    for slot, link, flow in zip(slots, links, flow_of.tolist(), strict=True):
        data = slot["bytes"][: slot["captured"]].tobytes()
        tag = b""
        if slot["tag_type"]:
            tag = struct.pack(">HH", int(slot["tag_type"]), int(slot["tag"]))
            data = data[:_ADDRESSES] + tag + data[_ADDRESSES:]
        at = capture.utc_ns(int(slot["time"]))
        length = int(slot["length"]) + len(tag)
        head = struct.pack("<5I", places[link], at >> 32, at & 0xFFFFFFFF, len(data), length)
        way = struct.pack("<I", 2 if slot["outgoing"] else 1)
        text = comments[flow]
        if slot["packets"] > 1:
            text += f"\nsegment of {slot['packets']} packets"
        if slot["dropped"]:
            text += "\ndropped by an action"
        yield _block(_PACKET, head + _padded(data), [(_COMMENT, text.encode()), (_FLAGS, way)])


def _block(kind: int, body: bytes, options: Sequence[tuple[int, bytes]] = ()) -> bytes:
    """Return a block: its kind and size, its body, its options, and its size again."""
    for number, value in options:
        body += struct.pack("<HH", number, len(value)) + _padded(value)
    if options:
        body += bytes(4)
    size = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + size + body + size


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _names(flows: Rows[FLOW], history: History) -> bytes:
    """Return the records of names that packets told, of addresses in the capture; empty: none."""
    known = {}
    for item in history.snapshots("names"):
        known.update({each.address: each.name for each in learned(item)})
    body = b""
    for end in ("source", "destination"):
        ends = np.unique(flows[[end, "version"]])
        for raw, version in ends.tolist() if known else ():
            packed = bytes(raw)[: 4 if version == 4 else 16]
            if name := known.pop(address_text(packed, version), ""):
                value = packed + name.encode() + b"\0"
                body += struct.pack("<HH", 1 if version == 4 else 2, len(value)) + _padded(value)
    return body + bytes(4) if body else b""


def _comments(capture: Capture, flows: Rows[FLOW], history: History) -> list[str]:
    """Return the comment of each flow: policy, owner, limit of the connection, and hops."""
    by = "kept by hand" if capture.name == BY_HAND else f"policy {capture.name}"
    owners, hops = _owners(flows, history), _hops(history)
    return [
        "\n".join([by, *owners.get(place, ()), *hops.get(_far(flow), ())])
        for place, flow in enumerate(flows)
    ]


def _far(flow: Row[FLOW]) -> str:
    end = "destination" if flow["direction"] == FlowDirection.EGRESS else "source"
    return address_text(flow[end].tobytes(), int(flow["version"]))


def _owners(flows: Rows[FLOW], history: History) -> dict[int, list[str]]:
    """Return owner and limit of flows by their places, of the newest window that knows them."""
    found: dict[int, list[str]] = {}
    owners = {item.end_ns: item for item in history.snapshots("sockets", OWNERS_TABLE)}
    for item in history.snapshots("sockets", SOCKETS_TABLE)[: -_WINDOWS - 1 : -1]:
        if (of := owners.get(item.end_ns)) is None:
            continue
        owned = Owned(flows, item.rows, of.rows)
        texts = {name: owned.texts(name) for name in ("process", "unit", "container", "pod")}
        for place in np.flatnonzero(owned.owner < len(of.rows)).tolist():
            if place in found:
                continue
            words = {name: text.texts[text.codes[place]] for name, text in texts.items()}
            about = [f"{name} {text}" for name, text in words.items() if text and name != "process"]
            pid = of.rows["tgid"][owned.owner[place]]
            found[place] = [f"owner {' '.join([words['process'], f'pid {pid}', *about])}"]
            if limit := Limit(int(owned.field("limit")[place])).label:
                found[place].append(f"verdict {limit}")
    return found


def _hops(history: History) -> Mapping[str, list[str]]:
    """Return the hops of traced destinations, each of the newest summary."""
    found: dict[str, dict[int, str]] = {}
    for item in history.snapshots("path", PATHS_TABLE)[-_WINDOWS:]:
        rows = item.rows[(item.rows["kind"] == PathRowKind.SUMMARY) & (item.rows["answered"] > 0)]
        for row in rows:
            version = int(row["version"])
            far, router = (
                address_text(row[name].tobytes(), version) for name in ("destination", "responder")
            )
            text = f"hop {row['hop']} {router} {milliseconds(row['median_ns'] / 1e9)} ms"
            found.setdefault(far, {})[int(row["hop"])] = text
    return {far: [text for _, text in sorted(hops.items())] for far, hops in found.items()}
