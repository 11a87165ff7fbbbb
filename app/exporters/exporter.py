"""The interface of exporters: what delivers the items of a controller to another program."""

from __future__ import annotations

from typing import Protocol

from bpf.errors import ProbedeckError
from probes.snapshot import Item


class DeliveryError(ProbedeckError):
    """The receiver does not take records now: they are delivered again later."""

    def __init__(self, text: str, delivered: int = 0, wait_s: float = 0.0) -> None:
        """`delivered` records of the item are delivered, with those before `skip`. The receiver
        wants no request for `wait_s` seconds."""
        super().__init__(text)
        self.delivered = delivered
        self.wait_s = wait_s


class RejectedError(ProbedeckError):
    """The receiver never takes some records of an item. The records behind them follow."""

    def __init__(
        self, text: str, records: int, delivered: int = 0, reason: str = "refused"
    ) -> None:
        """`records` are refused for a `reason`; `delivered` as in DeliveryError are before them."""
        super().__init__(text)
        self.records = records
        self.delivered = delivered
        self.reason = reason


def words_of(error: OSError) -> str:
    """Return the reason of a failure in one line. Of TLS, without OpenSSL's names and lines."""
    # Attributes of ssl.SSLCertVerificationError and ssl.SSLError: `ssl` loads slowly.
    if message := getattr(error, "verify_message", ""):
        return f"the receiver's certificate is refused: {message}"
    if reason := getattr(error, "reason", None):
        return f"TLS: {str(reason).replace('_', ' ').lower()}"
    return error.strerror or str(error) or type(error).__name__


class Exporter(Protocol):
    """Delivers records to one receiver.

    One thread calls all methods but `records`. A call that waits for the receiver must end within
    some seconds, with a DeliveryError. An OSError counts as one.
    """

    def records(self, item: Item) -> int:
        """Return how many records an item makes, 0 if the output does not take it.

        It is called by the publisher's thread, and delays its next window. So look only at the
        kind and the length of the item.
        """

    def open(self) -> None:
        """Connect, unless a connection stands. Called at first, and after each DeliveryError."""

    def deliver(self, item: Item, skip: int) -> None:
        """Deliver the records of an item; those before `skip` are delivered already.

        Flows come as OwnedFlows if somebody looks for owners. Raises DeliveryError and
        RejectedError.
        """

    def tick(self) -> None:
        """Do what is due by time. Called at least once a second while deliveries succeed."""

    def close(self) -> None:
        """Write out what is held back, and disconnect."""
