"""State of the hosts of a fleet, as its screens show it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from probes.snapshot import Losses

_OFF_S = 1.0


def is_off(offset_s: float, error_s: float) -> bool:
    """Whether a clock is surely wrong: then an event, the overview and screen 7 say so."""
    return abs(offset_s) - error_s > _OFF_S


class HostPhase(StrEnum):
    """State of the connection to a host."""

    CONNECTING = "connecting"
    """No answer yet since the start."""
    UP = "up"
    SLOW = "slow"
    """Records arrive late, or windows did not get through a short time ago."""
    LOST = "lost"
    """No connection. It is retried without end; what the host publishes meanwhile is missing."""
    REFUSED = "refused"
    """The host answers, and refuses the token or speaks another version. It is retried slowly."""

    @property
    def counts(self) -> bool:
        """Whether numbers over the fleet contain this host's."""
        return self in (HostPhase.UP, HostPhase.SLOW)


@dataclass(frozen=True, slots=True)
class HostState:
    """State of one host, its connection and its measurements, at one moment."""

    name: str
    labels: Mapping[str, str]
    url: str
    state: HostPhase = HostPhase.CONNECTING
    since_utc_ns: int = 0
    """When it entered the state, by the clock of this host, as all times here."""
    reason: str = ""
    """Why it is in a state other than up."""
    version: str = ""
    """Of its controller; empty before the first answer."""
    interface: str = ""
    """Interfaces in use, separated by commas."""
    read_only: str = ""
    """Why its controller refuses changes; empty if this client may make them."""
    packets_s: float = 0.0
    """Packets per second of the last window of flows, those left out by `top` included."""
    bits_s: float = 0.0
    flows: int = 0
    """Flows of the last window, those left out included."""
    losses: Losses = field(default_factory=dict)
    """Losses in its windows, of all probes, since the hub started to follow it."""
    behind: int = 0
    """Windows of it that did not get through, since the hub started to follow it."""
    offset_s: float = math.nan
    """Its clock minus the clock here, in seconds; NaN before the first measurement."""
    offset_error_s: float = math.inf
    """The true offset lies at most so far from `offset_s`."""
    lag_s: float = math.nan
    """From the end of the last window, by its clock and the offset, to its arrival."""
    received_s: float = 0.0
    """Bytes per second that the stream takes."""
    active: tuple[str, ...] = ()
    """Names of active policies."""

    @property
    def clock_is_off(self) -> bool:
        """Whether its clock is surely off."""
        return is_off(self.offset_s, self.offset_error_s)
