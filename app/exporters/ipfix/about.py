"""Records about the exporter: its interfaces, its sampling, and everything that it lacks."""

from __future__ import annotations

import contextlib
import socket
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from app.exporters.ipfix.message import Message, ObservationDomain, Uptime, room
from app.exporters.ipfix.records import EXPORTED
from app.exporters.ipfix.templates import (
    FlowPart,
    OptionsKind,
    Template,
    codes_of,
    flow_template,
    options_template,
)
from app.exporters.ledger import Ledger, TableKey
from bpf.arrays import Array, Rows
from bpf.attach.group import is_group
from probes.flow.interfaces import names_of
from probes.flow.records import FLOW
from probes.snapshot import Loss, lost_of
from probes.sockets.records import OWNER

_MOST_INTERFACES = 1024
"""Most interfaces that the collector learns of in a run on several: those seen last."""
_IN_MESSAGE = 6
"""Interfaces in each message about interfaces: they fit into the smallest datagram."""
_NAMED = 1 << 31
"""Least index that is made from a name."""
_NEWS_S = 5.0
"""Shortest time between two reports of losses."""


class _Times:
    """UTC milliseconds of the first and the last growth of a number; 0 before."""

    def __init__(self) -> None:
        self.first_ms = self.last_ms = 0
        self._known = 0

    def look(self, number: int) -> None:
        if number > self._known:
            self._known = number
            self.last_ms = time.time_ns() // 1_000_000
            self.first_ms = self.first_ms or self.last_ms


class About:
    """Makes records of options from the run's ledger and from the messages that were sent."""

    def __init__(
        self, version: int, output: str, ledger: Ledger, timeouts: tuple[int, int]
    ) -> None:
        """`timeouts` are the active and the idle one in seconds."""
        self._version = version
        self._output = output
        self._ledger = ledger
        self._timeouts = timeouts
        self._interfaces: dict[str, int] = {}
        self._host = socket.gethostname()
        self._messages = self._bytes = self._flows = 0
        self._ignored: dict[str, _Times] = {}
        self._not_sent = _Times()
        self._news_at = 0.0
        self._told: object = None
        """Losses of the last records."""

    def index(self, interface: str) -> int:
        """Return the index of an interface: the last one, if the interface is gone; and of another
        network namespace a number from its name, as namespaces have equal indices."""
        found = self._interfaces.pop(interface, 0)
        with contextlib.suppress(OSError):
            found = socket.if_nametoindex(interface)
        if "@" in interface:
            found = _NAMED | zlib.crc32(interface.encode())
        self._interfaces[interface] = found
        while len(self._interfaces) > _MOST_INTERFACES:
            del self._interfaces[next(iter(self._interfaces))]
        return found

    def indices(self, interface: str, rows: Rows[FLOW]) -> Array:
        """Return the index (n,) of the interface of each row of a run on `interface`."""
        if not is_group(interface):
            return np.full(len(rows), self.index(interface))
        names = names_of(rows)
        return np.array([self.index(name) for name in names.texts], "u4")[names.codes]

    def sent(self, message: Message, size: int) -> None:
        """Count a message of `size` bytes."""
        self._messages += 1
        self._bytes += size
        self._flows += message.records if message.rows else 0

    def unsent(self, messages: Iterable[Message]) -> None:
        """Take back the flows of messages that the collector does not have."""
        self._flows -= sum(message.records for message in messages if message.rows)

    def has_news(self) -> bool:
        """Return whether losses have changed since the last report, and a report is due."""
        if time.monotonic() < self._news_at:
            return False
        return self._losses() != self._told

    def messages(
        self, domain: ObservationDomain, kinds: tuple[OptionsKind, ...]
    ) -> Iterator[Message]:
        """Yield a message with a record of each kind; for a group, also messages on interfaces."""
        values = self._values(domain)
        sets = []
        for kind in kinds:
            template = options_template(kind, self._version)
            sets.append((template.number, _record(template, values, self._times(domain, kind))))
        self._told, self._news_at = self._losses(), time.monotonic() + _NEWS_S
        yield Message(domain, [*sets], records=len(sets))
        known = sorted(self._interfaces) if is_group(domain.interface) else []
        template = options_template(OptionsKind.INTERFACE, self._version)
        for at in range(0, len(known), _IN_MESSAGE):
            records = [
                _record(template, self._interface(name), self._not_sent)
                for name in known[at : at + _IN_MESSAGE]
            ]
            yield Message(domain, [(template.number, b"".join(records))], records=len(records))

    def _losses(self) -> object:
        lost = {key.interface: self._lost(key.interface) for key in self._ledger.tables()}
        return lost, self._ledger.unsent(self._output), self._interfaces.copy()

    def _lost(self, interface: str) -> Loss:
        totals = self._ledger.tables().get(TableKey("flow", interface, "", ""))
        return lost_of(totals.losses) if totals else Loss()

    def _values(self, domain: ObservationDomain) -> Mapping[str, int | str]:
        lost, unsent = self._lost(domain.interface), self._ledger.unsent(self._output)
        self._ignored.setdefault(domain.interface, _Times()).look(lost.packets)
        self._not_sent.look(unsent.records)
        return {
            **self._interface(domain.interface),
            "selectorId": 1,
            "selectorAlgorithm": 1,
            "samplingPacketInterval": 1,
            "samplingPacketSpace": 0,
            "samplingInterval": 1,
            "samplingAlgorithm": 1,
            "observationDomainId": domain.number,
            "exportingProcessId": 1,
            "exportedMessageTotalCount": self._messages,
            "exportedFlowRecordTotalCount": self._flows,
            "exportedOctetTotalCount": self._bytes,
            "flowActiveTimeout": self._timeouts[0],
            "flowIdleTimeout": self._timeouts[1],
            "ignoredPacketTotalCount": lost.packets,
            "ignoredOctetTotalCount": lost.bytes,
            "notSentFlowTotalCount": unsent.records,
            "notSentPacketTotalCount": unsent.packets,
            "notSentOctetTotalCount": unsent.bytes,
        }

    def _interface(self, name: str) -> Mapping[str, int | str]:
        return {
            "ingressInterface": 0 if is_group(name) else self.index(name),
            "interfaceName": name,
            "interfaceDescription": f"{name} of {self._host}",
        }

    def _times(self, domain: ObservationDomain, kind: OptionsKind) -> _Times:
        return self._not_sent if kind is OptionsKind.NOT_SENT else self._ignored[domain.interface]


def _record(template: Template, values: Mapping[str, int | str], times: _Times) -> bytes:
    made = bytearray()
    # An element that stands twice has the first and the last time.
    moments = iter((times.first_ms, times.last_ms))
    for element in template.fields:
        value = values[element.name] if element.name in values else next(moments)
        if isinstance(value, int):
            made += value.to_bytes(element.length, "big")
        else:
            # Of a fixed length: nfdump reads no variable ones here.
            made += value.encode()[: element.length].ljust(element.length, b"\0")
    return bytes(made)


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
