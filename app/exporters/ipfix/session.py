"""The messages of one output: in order, each once, over links that break."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Set
from typing import NoReturn

from app.exporters.exporter import DeliveryError, words_of
from app.exporters.ipfix.about import About
from app.exporters.ipfix.message import Message, ObservationDomain, template_messages
from app.exporters.ipfix.stream import Link, Sent
from app.exporters.ipfix.templates import (
    FIRST_TEMPLATE,
    OptionsKind,
    flow_template,
    options_template,
)

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
