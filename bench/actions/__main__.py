"""Actions: a flood to one port is limited, and other flows lose nothing.

The packets stay on a veth between two network namespaces that it makes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from app.lab import netns
from bench.flow import constant
from bench.runner.cases import Case, Effort, Goal, Group, at_least, exactly
from bpf.attach.attachment import Hook
from probes.control.controller import Controller
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from tests.probes.monitor.actions.flood import PORT, Others, flooding, generator_of, received
from tests.support.veth import veth_pair

WINDOW = 1.0
LIMIT = 1000
"""Packets of the flood that may pass in a second."""
_STEP_S = 0.1
_BURST = LIMIT * 0.1
"""Packets that may pass at once."""
POLICY = "flood: rate(packets on udp dport:2000) > 10k/s -> limit {}pps on udp dport:2000"


def acted(controller: Controller) -> dict[str, int]:
    """Packets that the actions of the policies took, or would have."""
    info = controller.monitor()
    assert info
    return {each.policy.name: each.action.packets for each in info.policies if each.action}


def limiting(hook: Hook, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Flood one port on a hook; a policy limits it."""
    rate, seconds = effort.of((500_000, 6.0), (2000, 1.0))
    left, right = stack.enter_context(veth_pair())
    stack.enter_context(netns.inside(right.ns))
    with Controller() as controller:
        options = MonitorOptions(bits=8, interval=WINDOW, ingress=hook, allow_actions=True)
        controller.watch_metrics(right.ifname, options)
        controller.set_policy(Policy.parse_short(POLICY.format(LIMIT)))
        others_policy = f"others: always -> dry drop on udp dport:{PORT}"
        controller.set_policy(Policy.parse_short(others_policy))
        others = Others(left, right)
        with generator_of(effort.compiler, left, right) as generator:
            time.sleep(2 * WINDOW)
            limited_s, begun = 0.0, time.monotonic()
            with flooding(generator, rate):
                passed, at, late = received() - others.sent, begun, 0
                while (now := time.monotonic()) < begun + seconds:
                    time.sleep(_STEP_S)
                    before, since, now = passed, at, time.monotonic()
                    passed, at = received() - others.sent, now
                    if passed - before > LIMIT * 1.2 * (now - since) + _BURST:
                        limited_s = now - begun
                    elif now > begun + 2 * WINDOW + 0.3:
                        late += passed - before
            sent, took = generator.sent(), time.monotonic() - begun
        others.finish()
        time.sleep(2 * WINDOW)  # Counts are of whole windows.
        seen = acted(controller)["others"]
    name = f"{hook.value}, a flood"
    yield Case(f"{name}: rate", "packets/s", constant(sent / took))
    if not effort.quick:
        yield Case(f"{name}: until {LIMIT} packets/s pass, windows of {WINDOW:g} s", "s",
                   constant(limited_s), goal=Goal(2 * WINDOW + 0.3, 0.001))  # fmt: skip
    yield Case(f"{name}: packets of another conversation that the hook saw", "packets",
               constant(seen), goal=at_least(1))  # fmt: skip
    yield Case(f"{name}: of these, lost", "packets", constant(seen - others.arrived),
               goal=exactly(0))  # fmt: skip


GROUPS = tuple(
    Group(hook.value, partial(limiting, hook), 1, warm=False)
    for hook in (Hook.TC_INGRESS, Hook.XDP)
)
