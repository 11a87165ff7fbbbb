"""A program and its terminal: queries, answers, and the end of either."""

from __future__ import annotations

import re
import signal
import sys
import termios
import time

import pytest

from tests.support.console.terminal import ANSWERS, GROUND, Terminal

DEMO = (sys.executable, "-I", "-m", "tests.widgets.demo")
STILL = (*DEMO, "--period", "0", "--rows", "50")
LIGHT = b"\x1b]11;rgb:ffff/fafa/f0f0\x1b\\"
DARK = b"\x1b]11;rgb:10/10/20\x07"


@pytest.mark.parametrize(("answer", "ground"), [(LIGHT, "light"), (DARK, "dark")])
def test_the_ground_is_asked_for_and_the_answer_taken_when_it_comes(
    answer: bytes, ground: str
) -> None:
    with Terminal(STILL, columns=80, rows=24, answers=ANSWERS | {GROUND: b""}) as terminal:
        terminal.wait("ready")
        terminal.settle()
        # In two parts, between typed keys.
        terminal.send(b"k" + answer[:9])
        time.sleep(0.01)
        terminal.send(answer[9:] + b"k")
        terminal.wait(rf"lost 0 │ {ground} ")


def test_answers_are_not_typed_into_anything() -> None:
    with Terminal(STILL, columns=80, rows=24) as terminal:
        terminal.wait("ready")
        terminal.send(b"\x1b[?62;22c" * 3 + LIGHT + b"q")
        assert terminal.wait_exit() == 0


def test_sequences_that_no_terminal_sends_do_no_harm() -> None:
    with Terminal(STILL, columns=80, rows=24) as terminal:
        terminal.wait("ready")
        for typed in ("\x1b[:u", "\x1b[99999999999;1u", "\x1b[<64;-5;9999999M"):
            terminal.send(typed)
            terminal.settle(0.1)
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert b"Traceback" not in terminal.raw()


@pytest.mark.slow
@pytest.mark.timing
def test_where_nothing_changes_nothing_is_written() -> None:
    with Terminal(STILL, columns=80, rows=24) as terminal:
        terminal.wait("ready")
        terminal.settle()
        before, cpu = terminal.bytes, terminal.cpu()
        time.sleep(1.0)
        assert terminal.bytes == before
        assert terminal.cpu() - cpu < 0.02


@pytest.mark.slow
def test_a_terminal_that_answers_nothing_is_drawn_on_nevertheless() -> None:
    with Terminal((*DEMO, "--period", "0.1"), columns=120, rows=40, answers={}) as terminal:
        terminal.wait(r"gen 1\d ")
        terminal.send("q")
        assert terminal.wait_exit() == 0


@pytest.mark.slow
def test_the_end_of_the_terminal_is_the_programs_own() -> None:
    # Nobody tells it: it has to notice.
    ignoring = ("sh", "-c", 'trap "" HUP; exec "$@"', "sh", *DEMO, "--period", "0.1")
    with Terminal(ignoring, columns=80, rows=24) as terminal:
        terminal.wait(r"gen \d+ ")
        terminal.hang_up()
        assert terminal.wait_exit(5) == 0


@pytest.mark.slow
def test_it_ends_though_the_terminal_takes_nothing_any_more() -> None:
    command = (*DEMO, "--period", "0.02", "--rows", "300")
    with Terminal(command, columns=120, rows=40, answers={}) as terminal:
        terminal.wait(r"gen \d+ ")
        terminal.stall()
        time.sleep(1.0)
        terminal.send("q")
        assert terminal.wait_exit(5) == 0


def test_the_terminal_is_given_back_whatever_stops_and_goes_on() -> None:
    stop, go, halt = signal.SIGTSTP, signal.SIGCONT, signal.SIGSTOP
    with Terminal(STILL, columns=80, rows=24) as terminal:
        before = termios.tcgetattr(terminal.fd)
        terminal.wait("ready")
        shown = terminal.settle()
        for number in (stop, go, go, stop, go, stop, stop, go, halt, go):
            terminal.signal(number)
            time.sleep(0.01)
        terminal.wait(lambda text: text == shown)
        terminal.settle()
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert termios.tcgetattr(terminal.fd)[:4] == before[:4]
        ends = terminal.raw().rpartition(b"\x1b[?1049l")[2]
        assert b"\x1b[?25h" in ends
        assert b"22c" not in ends, "an answer is left to the shell"


@pytest.mark.parametrize("kind", ["xterm-256color", "linux"])
def test_the_title_of_the_window_is_kept_and_brought_back(kind: str) -> None:
    with Terminal(STILL, columns=80, rows=24, environment={"TERM": kind}) as terminal:
        terminal.wait("ready")
        terminal.settle()
        terminal.signal(signal.SIGTSTP)
        time.sleep(0.05)
        terminal.signal(signal.SIGCONT)
        terminal.settle()
        terminal.send("q")
        assert terminal.wait_exit() == 0
        written = re.findall(rb"\x1b\[2[23];2t|\x1b\]2;[^\x07]*\x07", terminal.raw())
    kept, shown, back = b"\x1b[22;2t", b"\x1b]2;a demo\x07", [b"\x1b]2;\x07", b"\x1b[23;2t"]
    assert written == ([kept, shown, *back] * 2 if kind != "linux" else [])


def test_one_that_hardly_began_leaves_no_answer_to_the_shell() -> None:
    with Terminal(STILL, columns=80, rows=24, delay=0.2) as terminal:
        terminal.send("q")
        assert terminal.wait_exit() == 0
        terminal.settle()
        assert b"22c" not in terminal.raw()
