"""A hub and a hundred hosts over real sockets: each has its own fate, and the others go on."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator

import pytest

from app.api import wire
from app.api.address import Remote
from app.api.connection_events import lost
from app.fleet import connection, hub
from app.fleet.host_state import HostPhase, HostState
from app.fleet.hosts import FleetHost
from app.fleet.hub import Hub
from bpf.errors import UsageError
from probes.snapshot import Snapshot
from tests.support.fleet.followed import Followed
from tests.support.fleet.simulated_hosts import SimulatedHost, Simulator, refusal
from tests.support.sight import becomes

COUNT = 100


@pytest.fixture(scope="module")
def simulator() -> Iterator[Simulator]:
    with Simulator(COUNT) as simulator:
        simulator.hosts[9].offset_s = 5.0
        simulator.hosts[8].refusal = refusal(
            "401 Unauthorized", error="no valid token", exit_code=2
        )
        yield simulator


@pytest.fixture(scope="module")
def followed(simulator: Simulator) -> Iterator[Followed]:
    """With times in which the tests do not have to wait long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hub, "_TICK_S", 0.1)
        patch.setattr(hub, "_QUIET_S", 1.6)
        patch.setattr(hub, "_SLOW_S", 0.5)
        patch.setattr(hub, "_REFUSED_WAIT_S", 1.0)
        patch.setattr(connection, "_ANSWER_S", 2.2)
        with Hub([host.fleet_host for host in simulator.hosts]) as made:
            followed = Followed(made)
            # The table of policies is the last of a host's first window.
            assert becomes(lambda: sum(bool(one.active) for one in made.states()) == COUNT - 1)
            yield followed


def state(followed: Followed, host: SimulatedHost) -> HostState:
    return followed.hub.state(host.name)


def test_every_host_is_followed_with_its_numbers(simulator: Simulator, followed: Followed) -> None:
    ups = [one for one in followed.hub.states() if one.state is HostPhase.UP]
    assert len(ups) == COUNT - 1
    assert [one.name for one in followed.hub.states()] == [h.name for h in simulator.hosts]
    for one in ups:
        assert (one.version, one.interface, one.behind, one.reason) == ("9.9", "eth0", 0, "")
        # 500 flows were sent. Of 9,500 others only the totals came.
        assert (one.flows, one.active) == (10_000, ("flood",))
        assert 9500 * 2 < one.packets_s < 9500 * 2 + 500 * 1000
        # The offset was as it was known then.
        assert abs(one.lag_s) < 1


def test_a_clock_off_by_five_seconds_is_measured_and_corrected(
    simulator: Simulator, followed: Followed
) -> None:
    host = simulator.hosts[9]
    found = state(followed, host)
    assert abs(found.offset_s - 5) <= found.offset_error_s < 0.5
    (text,) = followed.events(host.name)
    told = re.fullmatch(
        r"its clock is (\d\.\d) s ahead of the clock here \(within (\S+) (us|ms|s)\);"
        r" times are corrected",
        text,
    )
    assert told, text
    # As exact as that answer was: a busy machine answers late.
    error = float(told[2]) * {"us": 1e-6, "ms": 1e-3, "s": 1.0}[told[3]]
    assert abs(float(told[1]) - 5) <= error * 1.01 + 0.051
    windows = [item for item in followed.items(host.name) if isinstance(item, Snapshot)]
    assert all(abs(item.end_utc_ns / 1e9 - time.time()) < 4 for item in windows[-3:])
    others = [one for one in followed.hub.states() if one.version and one.name != host.name]
    assert all(abs(one.offset_s) <= one.offset_error_s for one in others)


def test_a_refused_token_is_said_and_the_host_comes_when_it_is_right(
    simulator: Simulator, followed: Followed
) -> None:
    host = simulator.hosts[8]
    assert followed.is_in(HostPhase.REFUSED, host.name)
    assert state(followed, host).reason == "no valid token"
    host.refusal = b""
    assert followed.is_in(HostPhase.UP, host.name)


def test_a_lost_connection_names_its_address_once() -> None:
    event = lost("https://10.78.0.2:8765", "https://10.78.0.2:8765: peer closed connection")
    assert (event.source, event.text) == (
        "https://10.78.0.2:8765", "connection lost: peer closed connection",
    )  # fmt: skip


def test_missing_windows_make_a_host_slow_and_are_counted(
    simulator: Simulator, followed: Followed
) -> None:
    host = simulator.hosts[7]
    simulator.run(lambda: host.send(wire.encode(wire.Lost({"flow": 3, "mine": 2}, 1))))
    assert followed.is_in(HostPhase.SLOW, host.name)
    assert state(followed, host).behind == 5
    assert state(followed, host).state.counts
    assert "3 windows of flow did not get through in time" in followed.events(host.name)
    assert followed.is_in(HostPhase.UP, host.name)


def test_junk_is_refused_and_no_other_host_notices(
    simulator: Simulator, followed: Followed
) -> None:
    host = simulator.hosts[4]
    simulator.run(lambda: host.send(b"\xff\xff\xff\xff"))
    assert followed.is_in(HostPhase.REFUSED, host.name)
    assert "the stream holds a record" in state(followed, host).reason
    assert followed.is_in(HostPhase.UP, *(one.name for one in simulator.hosts[10:]))
    assert followed.is_in(HostPhase.UP, host.name)


def test_a_table_too_large_is_counted_and_the_rest_goes_on(
    simulator: Simulator, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = simulator.hosts[3]
    monkeypatch.setattr(hub, "_MAX_ROWS", 2000)
    simulator.run(host.stop)
    simulator.run(host.start)
    assert becomes(lambda: "is too large" in state(followed, host).reason)
    assert becomes(lambda: state(followed, host).active == ("flood",))
    assert state(followed, host).behind > 0


def test_an_impossible_address_names_its_host() -> None:
    with pytest.raises(UsageError, match=r"host ams: 'ftp://a' is no controller's address"):
        Hub([FleetHost("ams", Remote("ftp://a"))])


@pytest.mark.timing
def test_a_hub_ends_at_once_also_with_hosts_that_do_not_answer(simulator: Simulator) -> None:
    # Nothing listens there, or takes the connection and never answers.
    hosts = [FleetHost(f"gone-{n}", Remote(f"http://127.0.0.1:{n}")) for n in (1, 2)]
    before = threading.active_count()
    with Hub([*hosts, simulator.hosts[0].fleet_host]) as made:
        assert becomes(lambda: made.state("gone-1").state is HostPhase.LOST)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert threading.active_count() == before
