"""The exporter of flows: windows in, messages out in order, each once, over links that break."""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import NoReturn

from app.exporters.exporter import DeliveryError, words_of
from app.exporters.host import ExportHost
from app.exporters.ipfix.about import About, Encoder
from app.exporters.ipfix.flow_cache import FlowCache, Timeouts
from app.exporters.ipfix.message import Message, ObservationDomain, template_messages
from app.exporters.ipfix.options import CollectorOptions, IpfixOptions
from app.exporters.ipfix.records import EXPORTED, exported
from app.exporters.ipfix.stream import Link, Sent, StreamLink, UdpLink
from app.exporters.ipfix.templates import (
    FIRST_TEMPLATE,
    IPFIX,
    NETFLOW9,
    OptionsKind,
    flow_template,
    options_template,
)
from app.outputs.view import OwnedFlows, is_table
from bpf.arrays import Rows
from bpf.errors import UsageError
from probes.config.trusted_file import check_regular
from probes.snapshot import Item, Snapshot
from probes.sockets.records import OWNERS_TABLE

_REFRESH_S = 10.0
"""Templates and options go out again so often: a collector may have restarted unseen."""
_BASIC = frozenset(FIRST_TEMPLATE + bits for bits in range(4))
"""Templates of flows outside of tunnels, without owners."""
_DELIVER_S = 3.0
"""Longest time in which an item is handed to the link."""


class Session:
    """Sends messages, and sends again what the collector does not have."""

    def __init__(self, link: Link, version: int, about: About) -> None:
        self._link = link
        self._version = version
        self._about = about
        self._domains: dict[str, ObservationDomain] = {}
        self._sent: deque[Sent] = deque()
        self._owed: deque[Message] = deque()
        """Flows that are to be sent again first."""
        self._is_open = False
        self._deadline = 0.0
        self._refresh_at = 0.0

    def domain(self, interface: str) -> ObservationDomain:
        return self._domains.setdefault(interface, ObservationDomain(interface))

    def open(self) -> None:
        """Connect, unless a connection stands. Raises DeliveryError."""
        if self._is_open:
            return
        try:
            self._link.open()
        except OSError as error:
            raise DeliveryError(words_of(error)) from None
        self._is_open = True
        for domain in self._domains.values():
            domain.known.clear()
            if self._link.starts_anew:
                domain.sequence = 0

    def begin(self) -> None:
        """Begin to send an item: first send again what is owed. Raises DeliveryError."""
        self._deadline = time.monotonic() + _DELIVER_S
        if self._is_open and time.monotonic() >= self._refresh_at:
            self._refresh()
        while self._owed:
            message = self._owed.popleft()
            try:
                self.send(message)
            except DeliveryError:
                self._owed.appendleft(message)
                raise

    def send(self, message: Message) -> None:
        """Send a message with flows, and its template before if the collector lacks it.

        Raises DeliveryError, and then the message is not sent.
        """
        domain, number = message.domain, message.sets[0][0]
        if number not in domain.known:
            # Nothing is known of the domain, or the kind of flows is new.
            self._introduce(domain, {*domain.known, *_BASIC, number})
            self._settle()
        self._push(message)

    def tick(self) -> None:
        """Find a broken connection, and send templates and options that are due."""
        self._deadline = time.monotonic() + _DELIVER_S
        try:
            self._link.check()
        except OSError as error:
            self._break(error)
        if self._owed:
            self.begin()
        if time.monotonic() >= self._refresh_at:
            self._refresh()
        elif self._about.has_news():
            self._tell_losses()

    def end(self) -> int:
        """Send the last statistics, and disconnect. Returns the rows that are owed for ever."""
        try:
            self.begin()
            self._tell_losses()
            self._link.check()
        except (DeliveryError, OSError):
            pass
        self._link.close()
        return sum(message.rows for message in self._owed)

    def _refresh(self) -> None:
        """Send the options again, and over UDP all templates in use."""
        self._refresh_at = time.monotonic() + _REFRESH_S
        for domain in self._domains.values():
            if domain.known:
                self._introduce(domain, domain.known)

    def _introduce(self, domain: ObservationDomain, numbers: Set[int]) -> None:
        """Send templates of flows by number, and of options, and the options.

        A connection gets each template once.
        """
        version = self._version
        new = numbers - domain.known if self._link.starts_anew else numbers
        templates = [flow_template(number - FIRST_TEMPLATE, version) for number in sorted(new)]
        if not (self._link.starts_anew and domain.known):
            templates += [options_template(kind, version) for kind in OptionsKind]
        for message in template_messages(domain, templates, version, self._link.limit):
            self._push(message)
        domain.known = set(numbers)
        self._tell(domain, tuple(OptionsKind))

    def _settle(self) -> None:
        try:
            self._link.settle()
        except OSError as error:
            self._break(error)

    def _tell_losses(self) -> None:
        kinds = (OptionsKind.METERING, OptionsKind.IGNORED, OptionsKind.NOT_SENT)
        for domain in self._domains.values():
            if domain.known:
                self._tell(domain, kinds)

    def _tell(self, domain: ObservationDomain, kinds: tuple[OptionsKind, ...]) -> None:
        for message in self._about.messages(domain, kinds):
            self._push(message)

    def _push(self, message: Message) -> None:
        if not self._is_open:
            raise DeliveryError("no connection")
        domain = message.domain
        data = message.frame(self._version)
        try:
            end = self._link.send(data, self._deadline)
        except TimeoutError as error:
            # The connection stands, and goes on with the next delivery.
            raise DeliveryError(error.strerror or str(error)) from None
        except OSError as error:
            self._break(error)
        self._about.sent(message, len(data))
        self._sent.append(Sent(message, domain.sequence, end))
        domain.sequence += message.step(self._version)
        for _ in range(self._link.confirmed(self._sent)):
            self._sent.popleft()

    def _break(self, error: OSError) -> NoReturn:
        """Disconnect. Messages that the collector does not have are owed, before those that were.

        Raises DeliveryError.
        """
        self._is_open = False
        lost = list(self._sent)[self._link.lost(self._sent) :]
        for each in reversed(lost):
            each.message.domain.sequence = each.sequence
        self._about.unsent([each.message for each in lost])
        self._owed.extendleft(each.message for each in reversed(lost) if each.message.rows)
        self._sent.clear()
        self._link.close()
        raise DeliveryError(words_of(error)) from None


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
        self._ready.extend(
            self._messages(name, cached.cache.add(rows, item.end_utc_ns, cut=item.cut))
        )

    def _messages(self, interface: str, rows: Rows[EXPORTED], skip: int = 0) -> Iterable[Message]:
        indices = self._about.indices(interface, rows)
        return self._encoder.messages(self._session.domain(interface), indices, rows, skip)

    def _flush(self) -> None:
        """Send the messages that are ready. Raises DeliveryError."""
        while self._ready:
            self._session.send(self._ready[0])
            self._ready.popleft()
