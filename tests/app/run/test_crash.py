"""However a run ends, it writes its windows and leaves no program, process or namespace."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from app.lab.netns import inside
from bpf.abi import ProgType
from tests.app.outputs.test_outputs import tiny
from tests.bpf.tools import descriptor_numbers, xdp_id
from tests.probes.deck import link
from tests.support.runs import (
    COMMAND,
    Remains,
    Run,
    children,
    deck,
    deck_ends,
    measures,
    rows,
    stop,
)
from tests.support.sight import alive, becomes
from tests.support.veth import End, join, veth_pair

__all__ = ["tiny"]


@pytest.fixture
def left() -> Iterator[End]:
    with veth_pair() as (end, _):
        yield end


def command(directory: Path, *more: str) -> tuple[str, ...]:
    """By XDP, if `more` does not say otherwise: whether its program is there can be seen then."""
    options = ("--headless", "--ingress", "xdp", "--interval", "0.1", "-o", str(directory))
    return ("run", "-i", "left", *options, *more)


def xdp_of(end: End) -> int:
    """Id of the XDP program on an interface; 0 for none."""
    with inside(end.ns):
        return xdp_id(end.ifindex)


def send(end: End, packets: int) -> None:
    """To an address that nobody has, with a neighbour's entry not needed: multicast."""
    with inside(end.ns):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(end.ipv4))
        for _ in range(packets):
            sock.sendto(b"x", ("239.1.2.3", 999))


def sent(directory: Path) -> int:
    """The sent packets, as counted in the tables."""
    table = rows(directory / "flows.csv")
    return sum(int(row["packets"]) for row in table if row["destination_port"] == "999")


def helper_of(run: Run) -> int:
    (pid,) = children(run.pid)
    return pid


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.timing
def test_a_signal_ends_it_with_the_last_window_written(
    left: End, tmp_path: Path, number: signal.Signals
) -> None:
    with deck(*command(tmp_path, "--interval", "300"), ns=left.ns, cold=True) as run:
        assert becomes(lambda: xdp_of(left) != 0, 30)
        assert becomes(lambda: len(rows(tmp_path / "events.csv")) == 3, 30)
        remains = Remains(run)
        send(left, 23)
        started = time.monotonic()
        run.send_signal(number)
        time.sleep(0.01)
        code, out, err = stop(run, number)  # impatience is no reason to lose anything
        assert time.monotonic() - started < 1
    assert (code, out) == (0, "")
    assert err.splitlines()[3].startswith("probedeck: 1 windows, ")
    remains.assert_gone()
    assert xdp_of(left) == 0
    assert sent(tmp_path) == 23
    assert [row["window"] for row in rows(tmp_path / "windows.csv")] == ["1"]


def runs_our_code(run: Run) -> bool:
    """Whether the interpreter has begun with our code, which lets Ctrl-C end the process.

    Before, Python itself may end with code 1: it could not import its own modules.
    """
    text = Path(f"/proc/{run.pid}/status").read_text()
    ignored, caught = (int(mask, 16) for mask in re.findall(r"^Sig(?:Ign|Cgt):\t(.*)", text, re.M))
    started = ignored & 1 << signal.SIGPIPE - 1
    return bool(started) and not caught & 1 << signal.SIGINT - 1


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(
    ("number", "moments"), [(signal.SIGTERM, (50, 350, 650)), (signal.SIGINT, (200, 500))]
)
def test_a_signal_while_it_starts(
    left: End, tmp_path: Path, number: signal.Signals, moments: tuple[int, ...]
) -> None:
    for milliseconds in moments:
        with deck(*command(tmp_path), ns=left.ns, cold=True) as run:
            assert becomes(partial(runs_our_code, run), 30)
            time.sleep(milliseconds / 1000)
            code, out, err = stop(run, number)
        # Killed or interrupted while there was nothing to put right, or ended in good order.
        assert code in (0, -number, 128 + number)
        assert out == ""
        assert all(line.startswith("probedeck: ") for line in err.splitlines())
        assert xdp_of(left) == 0


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("late", [False, True], ids=["run", "serve"])
def test_a_signal_while_the_monitor_is_compiled_ends_it_soon(
    left: End, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """`serve` starts the monitor in a thread, after the first window of flows."""
    monkeypatch.setenv("CACHE_DIRECTORY", str(tmp_path / "empty"))
    more = ("serve", "-i", "left", "--api-socket", str(tmp_path / "s"), "--ingress", "xdp")
    headless = command(tmp_path, "--policies", "shipped")
    with deck(*(more if late else headless), ns=left.ns, cold=True) as run:
        assert becomes(lambda: xdp_of(left) != 0, 60)
        time.sleep(1.5 if late else 0.1)
        remains = Remains(run)
        started = time.monotonic()
        code, _, err = stop(run)
        took = time.monotonic() - started
    assert took < 2, (took, err)
    assert code == 0, err
    assert "closed" not in err
    assert "cancelled" not in err
    remains.assert_gone()
    assert xdp_of(left) == 0


@pytest.mark.slow
def test_killed_it_leaves_nothing(left: End, tmp_path: Path) -> None:
    with deck(*command(tmp_path), ns=left.ns, cold=True) as run:
        assert measures(tmp_path)
        remains = Remains(run)
        assert xdp_of(left) in remains.programs
        run.kill()
        run.wait()
    remains.assert_gone()
    assert xdp_of(left) == 0
    assert rows(tmp_path / "windows.csv")
    # And another can begin at once.
    assert deck_ends(*command(tmp_path, "--duration", "0.2"), ns=left.ns)[0] == 0


@pytest.mark.slow
def test_killed_it_leaves_no_program_of_a_cgroup_or_tracepoint(left: End, tmp_path: Path) -> None:
    with deck(*command(tmp_path, "--owners", "--drops"), ns=left.ns, cold=True) as run:
        assert becomes(
            lambda: (
                {ProgType.CGROUP_SOCK, ProgType.RAW_TRACEPOINT}
                <= descriptor_numbers("prog_type", run.pid)
            ),
            60,
        )
        remains = Remains(run)
        run.kill()
        run.wait()
    remains.assert_gone()


@pytest.mark.slow
def test_it_goes_on_without_its_compile_helper(left: End, tmp_path: Path) -> None:
    # A new store has no program yet.
    stores = {**os.environ, "CACHE_DIRECTORY": str(tmp_path / "cache")}
    with deck(*command(tmp_path), ns=left.ns, cold=True, env=stores) as run:
        assert measures(tmp_path)
        remains = Remains(run)
        os.kill(helper_of(run), signal.SIGKILL)
        before = len(rows(tmp_path / "windows.csv"))
        send(left, 17)
        assert becomes(lambda: len(rows(tmp_path / "windows.csv")) > before + 2)
        code, _, err = stop(run)
    assert code == 0
    assert "0 lost" in err
    assert sent(tmp_path) == 17
    remains.assert_gone()
    assert xdp_of(left) == 0
    # Secrets and sizes differ from start to start, and the programs are the same.
    again = tmp_path / "again"
    with deck(*command(again), ns=left.ns, cold=True, env=stores) as run:
        assert measures(again)
        assert children(run.pid) == ()
        assert stop(run)[0] == 0


@pytest.mark.slow
def test_a_killed_lab_leaves_nothing(tmp_path: Path) -> None:
    with deck("lab", "--headless", "--interval", "0.1", "-o", str(tmp_path), cold=True) as run:
        assert measures(tmp_path)
        lab = [pid for pid in children(run.pid) if children(pid)]
        below = tuple(child for pid in lab for child in children(pid))
        assert len(lab) == 1
        assert len(below) == 2
        remains = Remains(run)
        run.kill()
        run.wait()
    remains.assert_gone()
    assert becomes(lambda: not alive(below))


@pytest.mark.slow
def test_a_lab_whose_network_was_killed_ends(tmp_path: Path) -> None:
    with deck("lab", "--headless", "--interval", "0.1", "-o", str(tmp_path)) as run:
        assert measures(tmp_path)
        remains = Remains(run)
        (lab,) = (pid for pid in children(run.pid) if children(pid))
        os.kill(lab, signal.SIGKILL)
        _, err = run.communicate(timeout=10)
    assert "probedeck: lab: its processes have ended" in err.splitlines()
    assert " packets in flows, 0 lost" in err.splitlines()[-1]
    remains.assert_gone()


def test_a_reader_that_leaves_ends_it_quietly(left: End) -> None:
    arguments = ("run", "-i", "left", "--headless", "--interval", "0.1", "--views", "windows")
    with deck(*arguments, ns=left.ns) as run:
        assert run.stdout
        head = subprocess.run(["head", "-2"], stdin=run.stdout, capture_output=True, timeout=15)
        remains = None if run.poll() is not None else Remains(run)
        run.stdout.close()
        assert run.stderr
        err = run.stderr.read()
        assert run.wait(5) == 0
    assert head.stdout.count(b"\n") == 2
    assert [line.split(":")[2] for line in err.splitlines()[1:]] == [" tc ingress", " tc egress"]
    if remains:
        remains.assert_gone()
    assert xdp_of(left) == 0


def test_readers_of_both_outputs_leave(left: End) -> None:
    shell = f"{' '.join(COMMAND)} run -i left --headless --interval 0.1 --views windows 2>&1"
    with inside(left.ns):
        done = subprocess.run(
            ["bash", "-c", f"{shell} | head -1; echo ${{PIPESTATUS[0]}}"],
            capture_output=True, text=True, timeout=15,
        )  # fmt: skip
    assert done.stdout.splitlines()[1:] == ["0"]
    assert done.stderr == ""


def test_an_interface_goes_down_and_comes_back(left: End, tmp_path: Path) -> None:
    def said() -> list[str]:
        return [row["text"] for row in rows(tmp_path / "events.csv")][3:]

    with deck(*command(tmp_path), ns=left.ns) as run:
        assert measures(tmp_path)
        link(left, "set", state="down")
        assert becomes(lambda: said() == ["the interface is down"])
        link(left, "set", state="up")
        assert becomes(lambda: said() == ["the interface is down", "the interface is up"])
        send(left, 11)
        code, _, err = stop(run)
    assert code == 0
    assert sent(tmp_path) == 11
    assert err.splitlines()[3:5] == [
        "probedeck: left: the interface is down",
        "probedeck: left: the interface is up",
    ]


def test_an_interface_goes_away_and_returns(tmp_path: Path) -> None:
    """The run waits for it, and goes on in the same files."""

    def said(text: str) -> bool:
        return any(row["text"].startswith(text) for row in rows(tmp_path / "events.csv"))

    with veth_pair() as (left, right), deck(*command(tmp_path), ns=left.ns) as run:
        assert measures(tmp_path)
        remains = Remains(run)
        send(left, 11)
        link(left, "del")
        assert becomes(lambda: said("the interface went away"))
        left, _ = join(left, right)
        # Events of an interface come after its hooks are attached.
        assert becomes(lambda: said("the interface is up") or said("the interface is back, and up"))
        assert xdp_of(left) != 0
        send(left, 13)
        code, _, err = stop(run)
        assert xdp_of(left) == 0
    assert code == 0
    assert "probedeck: left: the interface went away, and its probes wait for its return" in err
    assert sent(tmp_path) == 24
    remains.assert_gone()


@pytest.mark.slow
def test_two_on_one_interface(left: End, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with deck(*command(one), ns=left.ns) as first:
        assert measures(one)
        mine = xdp_of(left)
        assert mine
        code, out, err = deck_ends(*command(two), ns=left.ns)
        assert (code, out) == (1, "")
        assert err.startswith("probedeck: XDP program '")
        assert err.endswith(
            f"id {mine} is on left and is left alone; --ingress auto or tc counts beside it\n"
        )
        assert xdp_of(left) == mine
        with deck(*command(two, "--ingress", "auto"), ns=left.ns) as second:
            assert measures(two)
            send(left, 13)
            assert stop(second)[0] == 0
        assert xdp_of(left) == mine
        send(left, 4)
        code, _, err = stop(first)
    assert code == 0
    assert "0 lost" in err
    assert (sent(one), sent(two)) == (17, 13)
