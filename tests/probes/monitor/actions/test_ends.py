"""Actions end with their process, and by the key and the request that stop all."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from app.lab import netns
from app.run.options import Options
from app.run.spec import run_spec
from app.run.start import start
from probes.control.controller import Controller
from probes.monitor.actions.state import ActionState
from probes.monitor.policy import Policy
from tests.support.runs import deck, deck_ends
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair

PORT = 7777
DROP = f"gone: always -> drop on udp dport:{PORT}"
OLD_KERNEL = f"""
import time
from bpf.attach.interface import Hook
from probes.control.controller import Controller
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy

with Controller(by_link=False) as controller:
    options = MonitorOptions(bits=8, ingress=Hook.TC_INGRESS, allow_actions=True)
    controller.watch_metrics("right", options, policies=[Policy.parse_short({DROP!r})])
    time.sleep(60)
"""
"""A run that attaches a clsact filter, which outlives it."""


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as found:
        yield found


@contextmanager
def talking(left: End, right: End) -> Iterator[Callable[[], bool]]:
    """Yield a function that sends a datagram, and returns whether it arrives."""
    with netns.inside(right.ns):
        to = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        to.bind((right.ipv4, PORT))
        to.settimeout(0.05)
    with netns.inside(left.ns):
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made.connect((right.ipv4, PORT))

    def arrives() -> bool:
        number = time.monotonic_ns().to_bytes(8, "big")
        made.send(number)
        try:
            while to.recv(100) != number:
                pass
        except TimeoutError:
            return False
        return True

    with to, made:
        assert becomes(arrives)
        yield arrives


def run(right: End, *more: str) -> tuple[str, ...]:
    return ("run", "-i", right.ifname, "--headless", "--ingress", "tc", "--policy", DROP, *more)


@pytest.mark.slow
@pytest.mark.parametrize("hook", ["tc", "xdp", "clsact"])
def test_kill_9_ends_an_action_at_once(pair: tuple[End, End], hook: str) -> None:
    """TC and XDP by a link. A clsact filter stays, and passes packets."""
    left, right = pair
    with talking(left, right) as arrives:
        arguments = run(right, "--allow-actions", "--only", "--ingress", hook)
        if hook == "clsact":
            with netns.inside(right.ns):
                found = subprocess.Popen([sys.executable, "-I", "-c", OLD_KERNEL], text=True)
        else:
            found = None
        with found or deck(*arguments, ns=right.ns) as killed:
            assert becomes(lambda: not arrives(), 60)
            assert not any(arrives() for _ in range(10))
            killed.send_signal(signal.SIGKILL)
            begun = time.monotonic()
            assert becomes(arrives, 5)
            assert time.monotonic() - begun < 1


def test_a_run_without_the_permission_acts_on_no_packet(pair: tuple[End, End]) -> None:
    left, right = pair
    with talking(left, right) as arrives, deck(*run(right, "--only"), ns=right.ns) as found:
        assert found.stderr
        told = next(line for line in found.stderr if "udp dport" in line)
        assert "policy gone is a dry run: it drops" in told
        assert all(arrives() for _ in range(20))


@pytest.mark.parametrize("allowed", [False, True])
def test_a_policy_that_starts_the_monitor_has_the_permission_of_its_run(
    pair: tuple[End, End], allowed: bool
) -> None:
    """`:policy add` does it in a run with `--policies none`."""
    left, right = pair
    options = Options(interface=right.ifname, only=True, cpu="off", allow_actions=allowed)
    with talking(left, right) as arrives, netns.inside(right.ns), Controller() as controller:
        start(controller, run_spec(options, "1"), ExitStack())
        found = controller.set_policy(Policy.parse_short(DROP)).action
        assert found
        assert found.state is (ActionState.ACTS if allowed else ActionState.DRY)
        assert [arrives() for _ in range(3)] == [not allowed] * 3


def test_a_file_of_policies_gives_no_permission(tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text("[monitor]\nallow_actions = true\n")
    code, _, err = deck_ends("run", "-i", "lo", "--headless", "--policies", str(file))
    assert code == 2
    assert "allow_actions" in err


@pytest.mark.slow
def test_a_request_ends_all_actions(pair: tuple[End, End], tmp_path: Path) -> None:
    left, right = pair
    path = str(tmp_path / "api.sock")
    arguments = run(right, "--allow-actions", "--only", "--api", "--api-socket", path)
    with talking(left, right) as arrives, deck(*arguments, ns=right.ns):
        assert becomes(lambda: not arrives(), 60)
        assert becomes(Path(path).exists)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(
                b"POST /v1/actions/stop HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Length: 0\r\n\r\n"
            )
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert json.loads(answer.rpartition(b"\r\n\r\n")[2]) == 1
        assert all(arrives() for _ in range(10))
