"""The console on the lab and the real kernel, under a terminal: traffic, capture, every end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from bpf.syscall import prog_fd_by_id
from tests.support.console.terminal import Terminal
from tests.support.runs import COMMAND, SHARING, program_ids
from tests.support.sight import assert_gone, becomes, namespaces_of

ALTERNATE_OFF = b"\x1b[?1049l"
_REST = re.compile(rb"\x1b\[[<=>?]?[\d;]*[ $]?[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\r\n]")


_END_S = 15
"""An end waits for the start of the monitor, which compiles on a new machine."""


@contextlib.contextmanager
def console(
    *options: str, rows: int = 24, command: tuple[str, ...] = SHARING
) -> Iterator[Terminal]:
    with Terminal((*command, "lab", *options), columns=120, rows=rows) as terminal:
        terminal.wait("LIVE", 60)
        yield terminal


def descendants(pid: int) -> tuple[int, ...]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *descendants(child)]
    return tuple(found)


def flows(terminal: Terminal) -> list[list[str]]:
    return [line.split() for line in terminal.screen().splitlines()[2:-1]]


def after_the_end(terminal: Terminal) -> str:
    """Text written after the terminal was given back, without escapes."""
    rest = terminal.raw().rpartition(ALTERNATE_OFF)[2]
    return _REST.sub(b"", rest).decode()


@pytest.mark.slow
def test_the_labs_traffic_is_seen_in_both_directions_and_families() -> None:
    with console("--interval", "0.3", rows=50) as terminal:
        terminal.wait(r"icmp6 .* fd94:0:0:6::2 echo")
        terminal.send("3")
        terminal.wait("/ Filter")
        terminal.send("V")
        terminal.wait(r"out +icmp6 +fd94::1 id \d+ +fd94:0:0:6::2 echo")
        terminal.wait(r"in +udp +10\.94\.6\.2:53 +10\.94\.0\.1:\d+ +[\d.]+ k?bit/s")
        terminal.wait(r"in +tcp +\[fd94:0:0:6::2\]:443 +\[fd94::1\]:\d+ ")
        assert "eth0 tcx" in terminal.screen().splitlines()[0]
        assert "lost 0" in terminal.screen().splitlines()[0]
        terminal.send("i")
        terminal.wait(r"tc ingress +tcx +\d+ +\d+ +\d+")
        terminal.send("\x1b")
        terminal.wait(lambda text: not re.search(r"tc ingress +tcx +\d+", text))
        # Nothing but Textual's own output came to the screen: drawn again, it is the same.
        terminal.send(" ")
        terminal.wait("PAUSED")
        before = terminal.settle(0.5).splitlines()[1:]
        drawn = terminal.bytes
        terminal.send("\x0c")
        # All of it again, and not only what each second changes.
        terminal.wait(lambda _: terminal.bytes > drawn + 2000)
        assert terminal.settle().splitlines()[1:] == before


@pytest.mark.slow
def test_what_is_counted_is_changed_while_traffic_runs() -> None:
    with console("--interval", "0.3") as terminal:
        terminal.wait("https +")
        terminal.send("3")
        terminal.wait("/ Filter")
        terminal.send("V")
        terminal.wait("Source")
        terminal.send("Cdir:in\r")
        terminal.wait("'dir:in' can't choose what is")
        terminal.send("\x15\x0b")
        terminal.wait("Count only +tcp port:443")
        terminal.send("icmp\r")
        terminal.wait("only icmp", 10)
        # No flow but of this protocol has packets any more: the others fall idle.
        terminal.wait(lambda _: rates(terminal, "icmp") > 0 and rates(terminal, "tcp") == 0, 8)
        terminal.send("6")
        terminal.wait(r"info +flow +generation 2 counts icmp; it took \d")
        assert "lost 0" in terminal.screen()


def rates(terminal: Terminal, protocol: str) -> int:
    """How many flows of a protocol have a rate."""
    rows = [row for row in flows(terminal) if len(row) > 4 and row[1] == protocol]
    return sum("0 bit/s" not in " ".join(row[3:7]) for row in rows)


@pytest.mark.slow
def test_a_lost_terminal_leaves_nothing() -> None:
    with console() as terminal:
        pids = descendants(terminal.pid)
        spaces = namespaces_of(pids)
        held = program_ids(terminal.pid)
        terminal.hang_up()
        assert terminal.wait_exit(_END_S) == 0
        assert_gone(pids, spaces)
        assert becomes(lambda: not loaded(held), 5.0)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_gives_the_terminal_back_and_leaves_nothing(number: signal.Signals) -> None:
    with console() as terminal:
        pids = descendants(terminal.pid)
        spaces = namespaces_of(pids)
        terminal.signal(number)
        # As a run without a console does.
        assert terminal.wait_exit(_END_S) == 0
        assert ALTERNATE_OFF in terminal.raw()
        assert after_the_end(terminal) == ""
        assert_gone(pids, spaces)


@pytest.mark.slow
def test_q_ends_it_at_any_moment() -> None:
    with Terminal((*SHARING, "lab"), columns=80, rows=24) as terminal:
        terminal.wait("STARTING", 15)
        terminal.send("q")
        assert terminal.wait_exit(10) == 0
        assert after_the_end(terminal) == ""


@pytest.mark.slow
def test_kill_9_leaves_no_program_no_namespace_and_no_process() -> None:
    with console(command=COMMAND) as terminal:
        pids = descendants(terminal.pid)
        spaces = namespaces_of(pids)
        held = program_ids(terminal.pid)
        assert held
        os.kill(terminal.pid, signal.SIGKILL)
        terminal.wait_exit()
        assert_gone(pids, spaces)
        # Programs live on only where somebody holds them; the kernel frees them a moment later.
        assert becomes(lambda: not loaded(held), 5.0)


def loaded(programs: set[int]) -> set[int]:
    """The programs that are still loaded."""
    found = set()
    for number in programs:
        with contextlib.suppress(OSError):
            os.close(prog_fd_by_id(number))
            found.add(number)
    return found


def test_a_probe_that_cannot_start_says_why_in_one_line_on_the_given_back_terminal() -> None:
    # Root in name only: the kernel refuses whatever it asks for.
    deny = ("setpriv", "--bounding-set=-bpf,-sys_admin,-net_admin,-perfmon")
    command = (*deny, *COMMAND, "run", "-i", "lo")
    with Terminal(command, columns=80, rows=24) as terminal:
        assert terminal.wait_exit(15) == 4
        said = after_the_end(terminal)
        assert said.startswith("probedeck: ")
        assert "Traceback" not in said
        assert terminal.raw().count(b"probedeck: ") == 1
