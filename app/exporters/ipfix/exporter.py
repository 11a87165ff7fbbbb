"""The exporter of flows: windows in, messages out."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from app.exporters.exporter import DeliveryError
from app.exporters.host import ExportHost
from app.exporters.ipfix.about import About
from app.exporters.ipfix.encoder import Encoder
from app.exporters.ipfix.flow_cache import FlowCache, Timeouts
from app.exporters.ipfix.message import Message
from app.exporters.ipfix.options import CollectorOptions, IpfixOptions
from app.exporters.ipfix.records import EXPORTED, exported
from app.exporters.ipfix.session import Session
from app.exporters.ipfix.stream import Link, StreamLink, UdpLink
from app.exporters.ipfix.templates import IPFIX, NETFLOW9
from app.outputs.view import OwnedFlows, is_table
from bpf.arrays import Rows
from bpf.errors import UsageError
from probes.config.trusted_file import check_regular
from probes.snapshot import Item, Snapshot
from probes.sockets.records import OWNERS_TABLE

_QUIET_NS = 5_000_000_000
"""Without a window for so long, the clock ends records."""


def ipfix(host: ExportHost) -> FlowExporter:
    """Make the exporter of `ipfix://`. Raises UsageError for files of TLS that can't be read."""
    config, options = host.config, host.config.options
    assert isinstance(options, IpfixOptions)
    link: Link
    if options.transport == "udp":
        link = UdpLink(config.host, config.port, options.mtu)
    else:
        context = _context(options) if options.transport == "tls" else None
        link = StreamLink(config.host, config.port, context)
    return FlowExporter(host, options, IPFIX, link, owners=options.owners)


def netflow9(host: ExportHost) -> FlowExporter:
    """Make the exporter of `netflow9://`."""
    config, options = host.config, host.config.options
    assert isinstance(options, CollectorOptions)
    link = UdpLink(config.host, config.port, options.mtu)
    return FlowExporter(host, options, NETFLOW9, link, owners=False)


def _context(options: IpfixOptions) -> ssl.SSLContext:
    try:
        check_regular(options.ca, options.cert, options.key)
        context = ssl.create_default_context(cafile=options.ca or None)
        if options.cert:
            context.load_cert_chain(options.cert, options.key)
    except OSError as error:
        names = ", ".join(filter(None, (options.ca, options.cert, options.key)))
        raise UsageError(f"TLS: {names}: {error.strerror or error}") from None
    return context


@dataclass(eq=False, slots=True)
class _Cached:
    """The flows of one interface that go on."""

    cache: FlowCache
    end_ns: int = 0
    """UTC end of the newest window."""


class FlowExporter:
    """Sends each flow of a window as a data record, or flows of several windows as one."""

    def __init__(
        self, host: ExportHost, options: CollectorOptions, version: int, link: Link, *, owners: bool
    ) -> None:
        self._host = host
        self._owners = owners
        self._timeouts = Timeouts(int(options.active * 1e9), int(options.idle * 1e9))
        """`active_ns` is 0 if each window is a record."""
        told = (round(options.active), round(options.idle)) if options.active else (0, 0)
        self._about = About(version, host.config.name, host.ledger, told)
        self._session = Session(link, version, self._about)
        self._encoder = Encoder(version, link.limit)
        self._caches: dict[str, _Cached] = {}
        self._ready: deque[Message] = deque()
        """Messages of records that ended; their rows count as delivered."""

    def records(self, item: Item) -> int:
        return len(item.rows) if isinstance(item, Snapshot) and is_table(item, "flow", "") else 0

    def open(self) -> None:
        self._session.open()

    def deliver(self, item: Item, skip: int) -> None:
        assert isinstance(item, Snapshot)
        if isinstance(item, OwnedFlows) and self._owners:
            self._encoder.texts.learn(item.tables[OWNERS_TABLE].rows)
        rows = exported(item, owners=self._owners)
        delivered = skip
        try:
            self._session.begin()
            if self._timeouts.active_ns:
                self._flush()
                self._collect(item, rows)
                delivered = len(rows)
                self._flush()
                return
            for message in self._messages(item.interface, rows, skip):
                self._session.send(message)
                delivered += message.rows
        except DeliveryError as error:
            raise DeliveryError(error.message, delivered) from None

    def tick(self) -> None:
        self._session.tick()
        now_ns = time.time_ns()
        for interface, cached in self._caches.items():
            if now_ns - cached.end_ns > _QUIET_NS:
                ended = cached.cache.expire(now_ns)
                self._ready.extend(self._messages(interface, ended))
        self._flush()

    def close(self) -> None:
        for interface, cached in self._caches.items():
            self._ready.extend(self._messages(interface, cached.cache.flush()))
        try:
            self._session.begin()
            self._flush()
        except DeliveryError:
            pass
        lost = self._session.end() + sum(message.rows for message in self._ready)
        if lost:
            self._host.lost(lost, "ended")

    def _collect(self, item: Snapshot, rows: Rows[EXPORTED]) -> None:
        """Add a window to the flows that go on; what ends is ready to be sent."""
        name = item.interface
        if (cached := self._caches.get(name)) is None:
            cached = self._caches[name] = _Cached(FlowCache(self._timeouts))
        cached.end_ns = item.end_utc_ns
        self._ready.extend(self._messages(name, cached.cache.add(rows, item.end_utc_ns)))

    def _messages(self, interface: str, rows: Rows[EXPORTED], skip: int = 0) -> Iterable[Message]:
        indices = self._about.indices(interface, rows)
        return self._encoder.messages(self._session.domain(interface), indices, rows, skip)

    def _flush(self) -> None:
        """Send the messages that are ready. Raises DeliveryError."""
        while self._ready:
            self._session.send(self._ready[0])
            self._ready.popleft()
