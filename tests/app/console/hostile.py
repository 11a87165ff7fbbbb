"""The console without a terminal: hostile windows and events, commands of every kind, keys and
sizes; and the invariants after each."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from app.commands.model import Command, Parameter, ParameterKind
from app.commands.registry import REGISTRY
from app.tape.condition import states
from bpf.arrays import Array
from probes.flow.records import FLOW, FlowDirection
from probes.monitor.records import METRIC, POLICY, TRANSITION
from probes.monitor.state import METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE, PolicyState
from probes.path import records as path_records
from probes.path.records import HOP, PATH, PATHS_TABLE, ProbeOutcome
from probes.snapshot import Event, Loss, LossReason, Snapshot
from probes.tables.conversion import TableKind, TableSchema
from probes.tables.field_types import FIELD_TYPES
from tests.app.console.fake import Desk, desk
from tests.app.console.fake_plane import FakePlane
from tests.app.console.fake_triggers import monitor, policy
from tests.support.console.feed import Flows, Routes, hops_window, window

NASTY = (
    "[/b]\x1b[2J", "\u202ename \ud800", "generation 2 runs", "x" * 300, "", "\0", "漢字 [link=x]",
    "\x9b31m\x07", "[bold", "\n\r\t", "%s {0} \\",
)  # fmt: skip
_POLICIES = 32
_SKIPPED = ("app.quit", "program.external")
"""Commands that end it, or that need a terminal."""
_PATIENCE_S = 5.0
_SAID = "this failed: "
"""Prefix of a thread's fault."""
_KEYS = (
    *"1234567890jkgGsSdnpaxoeuiltmvrcCTQ", "escape", "enter", "tab", "shift+tab", "space", "up",
    "down", "left", "right", "pageup", "pagedown", "home", "end", "backspace", "delete", "colon",
    "question_mark", "slash", "left_square_bracket", "right_curly_bracket", "minus", "at",
    "vertical_line", "ctrl+p", "ctrl+l", "ctrl+n", "ctrl+s", "ctrl+r", "ctrl+u", "ctrl+w", "f1",
    "f2", "f3", "f4", "f5", "f8", "f9",
)  # fmt: skip
_VALUES: dict[ParameterKind, tuple[str, ...]] = {
    ParameterKind.COUNT: ("1", "2", "59", "1" + "0" * 30, "0", "-1"),
    ParameterKind.COMMAND: ("view.flows", "flow.sort", "nonsense", "app.prompt app.prompt"),
    ParameterKind.FILTER: (
        "tcp", "port:1-9 rate>1k", "host:/[/", "(", "not not tcp",
        "rtt>1ms loss>1%", "",
    ),
    ParameterKind.FILE: (
        "a.csv", "a.svg", "b.json", "b.txt", "c.jsonl", "nowhere/x.csv", ".",
        "x.toml",
    ),
    ParameterKind.DESTINATION: ("192.0.2.9", "2001:db8::1", "0.0.0.0", "::ffff:1.2.3.4", "192.0.2"),
    ParameterKind.PROBE: ("flow", "hello", "nobody"),
    ParameterKind.POLICY: ("busy", "p7", "nobody"),
    ParameterKind.TAPE: ("q", "a", "triage", "nobody", "."),
    ParameterKind.LAYOUT: ("mine", "nobody", "../x", "."),
    ParameterKind.MOMENT: ("12:30:05", "0s", "5s", "999999h", "23:59:59.999999999", "soon"),
    ParameterKind.TEXT: (
        *NASTY, "row", "table", "rate source", "usual", "q",
        "busy: packets > 1 -> dns",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done to the console."""

    kind: str
    """`window`, `command`, `keys` or `resize`."""
    number: int = 0
    """Seed of the step's random choices."""
    text: str = ""
    size: tuple[int, int] = (0, 0)


def _lines() -> st.SearchStrategy[str]:
    def of(command: Command) -> st.SearchStrategy[str]:
        values = [_value(parameter) for parameter in command.parameters]
        return st.tuples(st.just(command.name), *values).map(" ".join)

    commands = [command for name, command in REGISTRY.items() if name not in _SKIPPED]
    return st.sampled_from(commands).flatmap(of)


def _value(parameter: Parameter) -> st.SearchStrategy[str]:
    return st.sampled_from(("", "wrong", *(parameter.choices or _VALUES[parameter.kind])))


STEPS = st.one_of(
    st.builds(lambda number: Step("window", number), st.integers(0, 2**32)),
    st.builds(lambda line: Step("command", text=line), _lines()),
    st.builds(
        lambda keys: Step("keys", text=",".join(keys)),
        st.lists(st.sampled_from(_KEYS), min_size=1, max_size=4),
    ),
    st.builds(
        lambda *size: Step("resize", size=size), st.integers(1, 200), st.integers(1, 60)
    ),
)  # fmt: skip


def plane() -> FakePlane:
    """A control plane with probes, and with as many policies as there can be."""
    from tests.app.console.fake_plane import config

    made = FakePlane(config("flow"), config("hello"))
    busy = policy("busy: packets > 100 -> accounting")
    others = (policy(f"p{n}: flows > {n}k -> dns") for n in range(1, _POLICIES))
    made.monitor_info = monitor(busy, *others)
    return made


class Source:
    """Makes what is published."""

    def __init__(self) -> None:
        self._flows, self._routes = Flows(300, churn=True), Routes(3, 12)
        self._number = 0

    def item(self, dice: random.Random) -> Snapshot | Event:
        """A window or an event of any kind."""
        self._number += 1
        kinds: Sequence[Callable[[random.Random], Snapshot | Event]] = (
            self._usual, self._hops, _noise, _nothing, _metric, _monitor, _event,
        )  # fmt: skip
        made = dice.choice(kinds)(dice)
        if isinstance(made, Snapshot) and dice.random() < 0.3:
            # Its clock is another, its program was put back, and it has seen too much.
            off = dice.choice([-(10**12), -1, 0, 10**12])
            made = replace(
                made, generation=dice.randint(1, 3), window=dice.choice([1, 7, 2**40]),
                start_ns=made.start_ns + off, end_ns=made.end_ns + off,
                end_utc_ns=dice.choice([made.end_utc_ns, 0, made.end_utc_ns + off]),
                occupancy=dice.choice([0.0, 1.0, 17.0]), losses=_losses(dice),
            )  # fmt: skip
        return made

    def _usual(self, dice: random.Random) -> Snapshot:
        now = time.monotonic_ns()
        rows = self._flows.next(now)[: dice.choice([0, 1, 300])].copy()
        return window(rows, self._number, end_ns=now)

    def _hops(self, dice: random.Random) -> Snapshot:
        now = time.monotonic_ns()
        rows = self._routes.next(now - 10**8, now)
        rows["outcome"] = dice.choice([*ProbeOutcome])
        return hops_window(rows, self._number, now - 10**8, now)


def _losses(dice: random.Random) -> dict[LossReason, Loss]:
    return {reason: Loss(dice.choice([1, 2**61])) for reason in LossReason if dice.random() < 0.3}


def _random(dice: random.Random, dtype: np.dtype[np.void], rows: int) -> Array:
    """Any bits."""
    return np.frombuffer(dice.randbytes(dtype.itemsize * rows), dtype).copy()


def _noise(dice: random.Random) -> Snapshot:
    """Rows of a built-in table with any bits, where those are not the numbers of names."""
    rows = dice.choice([0, 1, 40])
    if dice.random() < 0.4:
        flows = _random(dice, FLOW, rows)
        flows["direction"] %= len(FlowDirection)
        return window(flows)
    of_hops = dice.random() < 0.5
    found = _random(dice, HOP if of_hops else PATH, rows)
    if of_hops:
        found["outcome"] %= len(ProbeOutcome)
    else:
        found["kind"] %= len(path_records.PathRowKind)
    found["version"], found["protocol"] = dice.choice([4, 6]), dice.choice([6, 17, 1])
    made = hops_window(found, 1, 0, time.monotonic_ns())
    return made if of_hops else replace(made, metric=PATHS_TABLE)


def _nothing(dice: random.Random) -> Snapshot:
    """No time, no rows."""
    now = time.monotonic_ns()
    return replace(window(np.empty(0, FLOW)), start_ns=now, end_ns=now)


def _metric(dice: random.Random) -> Snapshot:
    """A table of a user's probe that nobody has heard of."""
    kind = dice.choice([*TableKind])
    value = np.dtype([("a", "<u8"), ("name", "S8"), ("x", "<f8")])
    dtype = np.dtype([("key", "<u4"), ("value", value)])
    rows = _random(dice, dtype, dice.choice([0, 1, 5000]))
    types = {"key": dice.choice([*FIELD_TYPES])} if dice.random() < 0.5 else {}
    if not all(FIELD_TYPES[name].takes(dtype["key"]) for name in types.values()):
        types = {}
    if kind is TableKind.HISTOGRAM:
        kind = TableKind.HASH
    return replace(
        window(rows), probe=dice.choice(["hello", "gone", dice.choice(NASTY)]),
        side=dice.choice(["ingress", "egress", ""]), metric=dice.choice(["senders", *NASTY]),
        schema=TableSchema(kind, dice.choice(NASTY), types),
    )  # fmt: skip


def _monitor(dice: random.Random) -> Snapshot:
    """A table of the monitor, of more policies than there are, and of numbers that are none."""
    numbers = (0.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e300)
    names = [f"p{n}" for n in range(_POLICIES)] + [text[:20] for text in NASTY]
    rows: Array
    metric = dice.choice([METRICS_TABLE, POLICIES_TABLE, TRIGGERS_TABLE])
    if metric == METRICS_TABLE:
        rows = _random(dice, METRIC, 1)
        rows["flows"], rows["flows_low"] = dice.choice(numbers), dice.choice(numbers)
    elif metric == POLICIES_TABLE:
        rows = np.zeros(dice.choice([0, 1, _POLICIES]), POLICY)
        for row in rows:
            row["policy"] = dice.choice(names).encode(errors="replace")
            row["state"] = dice.choice([*PolicyState])
            for name in ("value", "low", "high", "threshold"):
                row[name] = dice.choice(numbers)
    else:
        rows = np.zeros(dice.choice([0, 3]), TRANSITION)
        for row in rows:
            row["policy"], row["cause"] = b"busy", dice.choice(NASTY).encode(errors="replace")
            row["before"], row["after"] = dice.choice([*PolicyState]), dice.choice([*PolicyState])
    return replace(window(rows), probe="monitor", metric=metric)


def _event(dice: random.Random) -> Event:
    severity = dice.choice(["info", "warning", "error"])
    made = Event.now(severity, dice.choice(["flow", "path", *NASTY]), dice.choice(NASTY))
    return replace(made, utc_ns=dice.choice([made.utc_ns, 0, made.utc_ns + 10**15]))


async def put_up_with(console: Desk, steps: Sequence[Step]) -> None:
    """Do `steps` to a console. AssertionError where it does not put up with them."""
    app, source = console.app, Source()
    for step in steps:
        if step.kind == "window":
            console.controller.publish(source.item(random.Random(step.number)))
        elif step.kind == "command":
            app.call_later(app.action_command, step.text)
        elif step.kind == "keys":
            await console.pilot.press(*step.text.split(","))
        else:
            await console.pilot.resize_terminal(*step.size)
        await console.still()
        assert app._exception is None, step
        assert not any(_SAID in said for said in console.complaints), (step, console.complaints)
        for name in (*states(), "trigger.state.busy", "trigger.value.p1", "trigger.state.nobody"):
            app.tapes.state_of(name)
    await console.pilot.resize_terminal(120, 40)
    app.call_later(app.action_command, "macro.stop")
    app.call_later(app.action_command, "view.flows")
    await console.still()
    # Out of whatever was left open there.
    await console.press("escape", "escape", "escape", "6")
    end = time.monotonic() + _PATIENCE_S
    while app.current_mode != "events" and time.monotonic() < end:
        await console.still()
    assert app.current_mode == "events", console.text


def fuzz(steps: int, first: int, *, each: int = 100, shrink: bool = True) -> None:
    """Draw runs of `each` steps, and do them in this directory."""
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

    @seed(first)
    @settings(
        max_examples=max(1, steps // each), deadline=None, database=None, phases=phases,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(STEPS, min_size=each, max_size=each))
    def once(drawn: list[Step]) -> None:
        async def run() -> None:
            async with desk(controller=plane()) as console:
                await put_up_with(console, drawn)

        asyncio.run(run())

    cast("Callable[[], None]", once)()
