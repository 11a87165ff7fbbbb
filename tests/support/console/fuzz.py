"""The console under a terminal, with random keys, resizes, signals and windows.

A run is one console and a hundred steps. A key, a signal or a lost terminal ends it. It must end
with the right exit code, without a traceback, and give the terminal back as it was. hypothesis
draws the steps, and makes a run that fails as short as it can.
"""

from __future__ import annotations

import faulthandler
import itertools
import random
import re
import signal
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.console.terminal import Terminal

if TYPE_CHECKING:
    from tests.app.console.fake_plane import FakePlane

STEPS_OF_A_RUN = 100
_READY = "LIVE|STARTING|NO DATA"
_KEYS = [
    *"123456jkgGsSdnpaxoeuiltmvrcCTQqy?:[]{}=-+|@", " ", "\r", "\x1b", "\t", "\x7f", "\x1b[Z",
    *(f"\x1b[{code}" for code in ("A", "B", "C", "D", "H", "F", "5~", "6~", "3~")),
    *("\x1bOP", "\x1bOQ", "\x1bOR", "\x1bOS", "\x1b[15~", "\x1b[17~", "\x1b[19~", "\x1b[20~"),
    *(chr(ord(letter) - 96) for letter in "adefklnprsuwxy"),
]  # fmt: skip
"""As a terminal sends them; no slash, so that no file outside of the run's directory is written."""
_WORDS = [
    ":view.flows\r", ":flow.sort bytes\r", ":flow.filter tcp\r", ":flow.filter prt:1\r",
    ":flow.filter \r", ":nonsense\r", ":app.theme light\r", ":help.tour\r", ":trigger.sort\r",
    ":path.trace 192.0.2.9\r", ":path.trace [bold]\r", ":program.edit\r", ":view.export a.csv\r",
    ":view.columns\r", ":time.go 10s\r", "tcp port:443\r", "[/bold] \u4e16\u754c \u202e",
    "\x1b[200~pasted\ntext\x1b[201~", "\x1b[:u", "\x1b[99999999999;1u", "\x1b[<0;9;9M\x1b[<0;9;9m",
    "\x1b[<64;-5;9999999M", "\x1bO\x1b[1;2", "\x1b]11;rgb:1/2/", "\x1b[?62", "\x1bP", "\xff\x9b",
]  # fmt: skip
_ENDINGS = {
    "quit": 0, "lost": None, "TERM": 0, "HUP": 0, "INT": 0,
    **{name: 128 + signal.Signals[f"SIG{name}"] for name in ("QUIT", "USR1")},
}  # fmt: skip
"""How a run ends, and with which code; None: whichever."""
_PATIENCE = 20.0
"""Seconds in which it must end, beside whatever else the machine does."""
_FAULTS = "faults"
"""File with the stack of an unhandled exception."""
_STACKS = "stacks"
"""File with the stacks of all threads, written on SIGPROF."""
_RESTORED = re.compile(rb"\x1b\[\?1049l")
_SHOWN = re.compile(rb"\x1b\[\?25([hl])")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done to the console."""

    kind: str
    """`keys`, `resize`, `stop` or `wait`."""
    keys: str = ""
    size: tuple[int, int] = (0, 0)


STEPS = st.one_of(
    st.builds(lambda key: Step("keys", key), st.sampled_from(_KEYS)),
    st.builds(
        lambda keys: Step("keys", "".join(keys)), st.lists(st.sampled_from(_KEYS), max_size=6)
    ),
    st.builds(lambda words: Step("keys", words), st.sampled_from(_WORDS)),
    st.builds(
        lambda columns, rows: Step("resize", size=(columns, rows)),
        st.integers(1, 200),
        st.integers(1, 60),
    ),
    st.just(Step("stop")),
    st.just(Step("wait")),
)


def console(number: int) -> int:
    """Be the console, over a plane that publishes whatever `number` makes it."""
    from app.console.app import ConsoleApp
    from probes.control_plane import ControlPlane
    from tests.app.console.fake_plane import FakePlane, config

    class PlainApp(ConsoleApp):
        """A console that writes faults to a file: Textual cuts them to the terminal's size."""

        def _fatal_error(self) -> None:
            _tell_fault()
            super()._fatal_error()

    def feed() -> None:
        try:
            _publish(plane, random.Random(number))
        except Exception:
            _tell_fault()
            raise

    plane = FakePlane(config("flow"), config("hello"))
    feeder = threading.Thread(target=feed, daemon=True)
    app = PlainApp(lambda: cast("ControlPlane", plane), feeder.start, "eth0", names=False)
    faulthandler.register(signal.SIGPROF, open(_STACKS, "w"))  # noqa: SIM115
    code = app.run()
    return code if code is not None else app.return_code or 0


def _tell_fault() -> None:
    # The first leads to others.
    with suppress(FileExistsError), open(_FAULTS, "x") as file:
        traceback.print_exc(file=file)


def _publish(plane: FakePlane, dice: random.Random) -> None:
    """Windows of every kind, empty ones, lossy ones, hostile names, at any pace."""
    from probes.snapshot import Event, Loss, LossReason
    from tests.app.console.fake_triggers import FakeMonitor, Said, Traffic, monitor, policy
    from tests.support.console.feed import Flows, Routes, hops_window, window

    routes = Routes(dice.randint(1, 4), dice.randint(1, 15))
    flows = Flows(dice.choice([1, 40, 3000]), churn=True)
    triggers = FakeMonitor()
    plane.monitor_info = monitor(policy("busy: packets > 100 -> accounting"))
    plane.paths = {traced.destination: traced for traced in routes.traced}
    number = 0
    while True:
        time.sleep(dice.choice([0, 0.001, 0.02, 0.1]))
        number += 1
        now = time.monotonic_ns()
        lost = {LossReason.TABLE_FULL: Loss(dice.randint(1, 10**9))} if dice.random() < 0.1 else {}
        match dice.randrange(5):
            case 0:
                rows = flows.next(now)[: dice.choice([0, 1, 10**6])].copy()
                plane.publish(window(rows, number, end_ns=now, losses=lost))
            case 1:
                rows = routes.next(now - 10**8, now)
                plane.publish(hops_window(rows, number, now - 10**8, now))
            case 2:
                for table in triggers.window({"busy": Said(dice.random() * 500, 100)}, Traffic()):
                    plane.publish(table)
            case 3:
                text = dice.choice(
                    ["[/b]\x1b[2J", "\u202ename \ud800", "generation 2 runs", "x" * 300]
                )
                plane.publish(Event.now(dice.choice(["info", "warning", "error"]), "flow", text))
            case 4:
                plane.fail("hello", dice.choice(["", "it [failed]"]))


def run(steps: Sequence[Step], ending: str, number: int) -> None:
    """Do `steps` to a console and end it. AssertionError where it does not end well."""
    with tempfile.TemporaryDirectory() as directory:
        command = (sys.executable, "-I", "-m", "tests.support.console.fuzz", str(number))
        home = dict.fromkeys(("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"), directory)
        entered = ("env", "-C", directory, *command)
        with Terminal(
            entered, columns=80, rows=24, environment={**home, "EDITOR": "true"}
        ) as terminal:
            before = termios.tcgetattr(terminal.fd)
            terminal.wait(_READY, 10)
            for step in steps:
                _do(terminal, step)
                if not terminal.running:
                    break
            if terminal.running:
                _end(terminal, ending)
            code = _ended(terminal, Path(directory))
            said = terminal.raw()
            faults = Path(directory, _FAULTS)
            assert not faults.exists(), faults.read_text()
            assert b"Traceback" not in said, said[-4000:].decode(errors="replace")
            expected = _ENDINGS[ending]
            assert expected is None or code == expected, (code, expected)
            if ending != "lost":
                assert _RESTORED.search(said), "it did not leave the alternate screen"
                assert _SHOWN.findall(said)[-1:] == [b"h"], "it did not show the cursor again"
                assert termios.tcgetattr(terminal.fd)[:4] == before[:4], "the terminal's modes"


def _ended(terminal: Terminal, directory: Path) -> int:
    """The exit code. Raises AssertionError with the threads' stacks if the console does not end."""
    for _ in range(2):
        try:
            return terminal.wait_exit(_PATIENCE)
        except TimeoutError:
            terminal.signal(signal.SIGPROF)
            time.sleep(0.5)
            state = Path(f"/proc/{terminal.pid}/stat").read_text().rpartition(")")[2].split()[0]
            stacks = Path(directory, _STACKS).read_text()
            # SIGCONT may have come in the moment of the stop: a shell repeats it.
            terminal.signal(signal.SIGCONT)
    raise AssertionError(f"in state {state} it does not end:\n{stacks}")


def _do(terminal: Terminal, step: Step) -> None:
    if step.kind == "keys":
        terminal.send(_harmless(step.keys))
    elif step.kind == "resize":
        terminal.resize(*step.size)
    elif step.kind == "stop":
        terminal.signal(signal.SIGTSTP)
        time.sleep(0.02)
        terminal.signal(signal.SIGCONT)
    else:
        time.sleep(0.05)


def _harmless(keys: str) -> str:
    """`q` and ctrl+c would end the run before its end."""
    return keys.replace("q", "")


def _end(terminal: Terminal, ending: str) -> None:
    if ending == "lost":
        terminal.hang_up()
    elif ending == "quit":
        # Out of whatever is open, and again, as it asks about what is not saved, and hears nothing
        # while a tape plays.
        for keys in itertools.islice(itertools.cycle(("\x1b", ":app.quit\r")), 20):
            if terminal.running:
                terminal.send(keys)
                time.sleep(0.3)
    else:
        terminal.signal(signal.Signals[f"SIG{ending}"])


def fuzz(steps: int, first: int, *, shrink: bool = True) -> None:
    """Draw runs of `STEPS_OF_A_RUN` steps and do them."""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

    @seed(first)
    @settings(
        max_examples=max(1, steps // STEPS_OF_A_RUN), deadline=None, database=None, phases=phases,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(
        st.lists(STEPS, min_size=min(steps, STEPS_OF_A_RUN), max_size=min(steps, STEPS_OF_A_RUN)),
        st.sampled_from(sorted(_ENDINGS)),
        st.integers(0, 2**32),
    )
    def once(drawn: list[Step], ending: str, number: int) -> None:
        run(drawn, ending, number)

    cast("Callable[[], None]", once)()


if __name__ == "__main__":
    sys.exit(console(int(sys.argv[1])))
