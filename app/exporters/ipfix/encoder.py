"""From rows of flows to messages, without a loop over records."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.exporters.ipfix.message import Message, ObservationDomain, Uptime, room
from app.exporters.ipfix.records import EXPORTED
from app.exporters.ipfix.templates import FlowPart, Template, codes_of, flow_template
from bpf.arrays import Array, Rows
from probes.sockets.records import OWNER

_BLOCK = 8192
"""Rows that are encoded at a time: messages keep the memory of their block."""
_TEXTS = ("comm", "user", "container", "unit", "pod")
"""Fields of OWNER, in the order of the templates' texts."""
_MOST_OWNERS = 1 << 16


class OwnerTexts:
    """Texts of owners in wire format: a byte with the length stands before each text."""

    def __init__(self) -> None:
        self._of: dict[int, bytes] = {}

    def learn(self, owners: Rows[OWNER]) -> None:
        """Take the owners (n,) of a window, of dtype OWNER."""
        if len(self._of) + len(owners) > _MOST_OWNERS:
            self._of.clear()
        columns = [owners[name].tolist() for name in _TEXTS]
        for number, *texts in zip(owners["number"].tolist(), *columns, strict=True):
            self._of[number] = b"".join(bytes([len(text)]) + text for text in texts)

    def pool(self, numbers: Array) -> tuple[Array, Array]:
        """Return the bytes (m,) u1 of all texts, and the end of each owner's texts (n,) i8."""
        empty = bytes(len(_TEXTS))
        texts = [self._of.get(number, empty) for number in numbers.tolist()]
        return np.frombuffer(b"".join(texts), "u1"), np.cumsum([len(text) for text in texts])


class Encoder:
    """Makes messages of at most `limit` bytes."""

    def __init__(self, version: int, limit: int) -> None:
        self.version = version
        self._room = room(version, limit)
        self._uptime = Uptime()
        self.texts = OwnerTexts()

    def messages(
        self, domain: ObservationDomain, interfaces: Array, rows: Rows[EXPORTED], skip: int = 0
    ) -> Iterator[Message]:
        """Yield the messages of rows (n,) of dtype EXPORTED.

        The order of records follows from `rows` alone; the first `skip` are left out. `interfaces`
        (n,) are the indices of their interfaces.
        """
        codes = codes_of(rows)
        order = np.argsort(codes, kind="stable")[skip:]
        base_ms = self._uptime.base_ms()
        for code in np.unique(codes[order]).tolist():
            chosen = order[codes[order] == code]
            template = flow_template(code, self.version)
            for at in range(0, len(chosen), _BLOCK):
                block = chosen[at : at + _BLOCK]
                part = FlowPart(rows[block], interfaces[block], base_ms)
                yield from self._block(domain, template, part)

    def _block(
        self, domain: ObservationDomain, template: Template, part: FlowPart
    ) -> Iterator[Message]:
        fixed = part.encode(template)
        if template.texts:
            body, ends = self._with_texts(fixed, part.rows["owner"])
        else:
            body = fixed.view("u1")
            ends = np.arange(1, len(fixed) + 1) * fixed.dtype.itemsize
        windows = np.concatenate(([0], np.cumsum(part.rows["windows"])))
        data, start, begin = body.data, 0, 0
        while start < len(ends):
            stop = int(np.searchsorted(ends, begin + self._room, "right"))
            end = int(ends[stop - 1])
            rows = int(windows[stop] - windows[start])
            sets: list[tuple[int, bytes | memoryview]] = [(template.number, data[begin:end])]
            yield Message(domain, sets, stop - start, rows, base_ms=part.base_ms)
            start, begin = stop, end

    def _with_texts(self, fixed: Array, owners: Rows[OWNER]) -> tuple[Array, Array]:
        """Return records with the texts behind their fixed fields: bytes (m,) u1, ends (n,) i8."""
        numbers, of = np.unique(owners, return_inverse=True)
        pool, pool_ends = self.texts.pool(numbers)
        lengths = np.diff(pool_ends, prepend=0)[of]
        size = fixed.dtype.itemsize
        ends = np.cumsum(lengths + size)
        body = np.empty(int(ends[-1]), "u1")
        begins = ends - lengths - size
        body[begins[:, None] + np.arange(size)] = fixed.view("u1").reshape(len(fixed), size)
        # For each byte of a text: where it stands in the pool.
        text_begins = np.cumsum(lengths) - lengths
        within = np.arange(int(lengths.sum())) - np.repeat(text_begins, lengths)
        first = (pool_ends - np.diff(pool_ends, prepend=0))[of]
        body[np.repeat(begins + size, lengths) + within] = pool[np.repeat(first, lengths) + within]
        return body, ends
