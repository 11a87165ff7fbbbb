"""Three real controllers in namespaces and a hundred simulated ones, by TLS and tokens."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.api.address import Remote
from app.fleet import connection, hub
from app.fleet.host_state import HostPhase
from app.fleet.hosts import FleetHost
from app.fleet.hub import Hub
from app.lab.netns import inside
from bpf import errors
from probes.snapshot import Snapshot
from tests.support.fleet.followed import Followed
from tests.support.fleet.simulated_hosts import Simulator
from tests.support.fleet.star import Star, star
from tests.support.runs import Run, deck
from tests.support.sight import becomes

HOSTS, SIMULATED = 3, 100
PORT, COUNTED = 8765, 4242
NAMES = tuple(f"real-{number}" for number in range(HOSTS))


@dataclass(frozen=True, slots=True)
class LiveFleet:
    followed: Followed
    star: Star
    runs: tuple[Run, ...]

    def send(self, host: int, packets: int) -> None:
        """Send datagrams from the console to a host."""
        with (
            inside(self.star.console),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        ):
            for _ in range(packets):
                sender.sendto(b"x" * 100, (self.star.address(host), COUNTED))

    def counted(self, host: int) -> int:
        """Packets to the port that the host's windows have, up to now."""
        return sum(
            int(item.rows["packets"][item.rows["destination_port"] == COUNTED].sum())
            for item in self.followed.items(NAMES[host])
            if isinstance(item, Snapshot) and (item.probe, item.metric) == ("flow", "")
        )

    def others_go_on(self, host: int) -> bool:
        """Whether a window of every other host comes now."""
        before, names = self.followed.windows(), self.names - {NAMES[host]}
        return becomes(lambda: all(self.followed.windows()[n] > before[n] for n in names), 5)

    @property
    def names(self) -> set[str]:
        return {one.name for one in self.followed.hub.hosts}


def certificate(directory: Path, addresses: list[str]) -> tuple[str, str]:
    cert, key = str(directory / "cert.pem"), str(directory / "key.pem")
    names = ",".join(f"IP:{address}" for address in addresses)
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN=probedeck -addext subjectAltName={names} -keyout {key} -out {cert}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFleet]:
    directory = tmp_path_factory.mktemp("fleet")
    token = directory / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-enough-letters\n")
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(hub, "_TICK_S", 0.1)
        patch.setattr(hub, "_QUIET_S", 2.1)
        patch.setattr(errors, "LONGEST_WAIT_S", 0.5)
        patch.setattr(connection, "_ANSWER_S", 2.5)
        patch.setattr(connection, "_CONNECT_S", 1.0)
        made = stack.enter_context(star(HOSTS))
        cert, key = certificate(directory, [made.address(n) for n in range(HOSTS)])
        runs, hosts = [], []
        for number, (name, ns) in enumerate(zip(NAMES, made.hosts, strict=True)):
            at = f"{made.address(number)}:{PORT}"
            runs.append(stack.enter_context(deck(
                "run", "-i", "eth0", "--headless", "--interval", "0.5",
                "--api-socket", str(directory / f"{name}.sock"), "--api-listen", at,
                "--api-token", str(token), "--api-cert", cert, "--api-key", key, ns=ns,
            )))  # fmt: skip
            hosts.append(FleetHost(name, Remote(f"https://{at}", str(token), cert)))
        with inside(made.console):
            simulator = stack.enter_context(Simulator(SIMULATED))
            hosts += [host.fleet_host for host in simulator.hosts]
            made_hub = Hub(hosts)
            followed = Followed(made_hub)
            # Its thread stays in this namespace.
            stack.enter_context(made_hub)
        found = LiveFleet(followed, made, tuple(runs))
        # Three controllers compile their programs at once.
        assert becomes(lambda: found.names == set(followed.windows()), 60)
        yield found


@pytest.mark.slow
def test_every_packet_of_every_host_arrives_in_its_windows(fleet: LiveFleet) -> None:
    for host in range(HOSTS):
        fleet.send(host, 100 + host)
    assert becomes(lambda: [fleet.counted(n) for n in range(HOSTS)] == [100, 101, 102])
    for name in NAMES:
        state = fleet.followed.hub.state(name)
        assert (state.state, state.interface, state.read_only) == (HostPhase.UP, "eth0", "")
        # The same clock.
        assert abs(state.offset_s) <= state.offset_error_s < 0.5
        status = fleet.followed.hub.status(name)
        assert status is not None
        assert status.interval == 0.5


def test_strangers_are_refused_on_both_sides(fleet: LiveFleet, tmp_path: Path) -> None:
    """An unknown certificate gets no token, and an unknown token no records."""
    remote, token = fleet.followed.hub.hosts[0].remote, tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("another-token-of-letters\n")
    hosts = [
        FleetHost("certificate", Remote(remote.url, remote.token)),
        FleetHost("token", Remote(remote.url, str(token), remote.authorities)),
    ]
    with inside(fleet.star.console), Hub(hosts) as strangers:
        assert becomes(lambda: all(one.state is HostPhase.REFUSED for one in strangers.states()))
        first, second = strangers.states()
    assert "is not trusted: self-signed certificate" in first.reason
    assert "no valid token" in second.reason


@pytest.mark.slow
def test_a_cut_network_is_slow_then_lost_and_comes_back(fleet: LiveFleet) -> None:
    fleet.star.cut(1)
    assert fleet.followed.is_in(HostPhase.LOST, NAMES[1])
    assert fleet.others_go_on(1)
    assert fleet.followed.hub.state(NAMES[1]).packets_s == 0
    fleet.star.cut(1, down=False)
    assert fleet.followed.is_in(HostPhase.UP, NAMES[1], seconds=10)
    texts = fleet.followed.events(NAMES[1])
    assert any(text.startswith("connection lost: ") for text in texts)
    assert "connected again; what was published meanwhile is missing" in texts
    before = fleet.counted(1)
    fleet.send(1, 10)
    assert becomes(lambda: fleet.counted(1) == before + 10)


def test_a_killed_host_is_lost_and_the_others_stay_right(fleet: LiveFleet) -> None:
    fleet.runs[2].kill()
    assert fleet.followed.is_in(HostPhase.LOST, NAMES[2])
    counted = fleet.counted(0)
    fleet.send(0, 50)
    assert becomes(lambda: fleet.counted(0) == counted + 50)
    assert fleet.others_go_on(2)
    lost = [one.name for one in fleet.followed.hub.states() if not one.state.counts]
    assert lost == [NAMES[2]]
