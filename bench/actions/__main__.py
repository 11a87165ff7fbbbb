"""Actions: a flood to one port is limited, and other flows lose nothing.

    python -I -m bench.actions [--rate 500000] [--seconds 6]

Needs root; the packets stay on a veth between two network namespaces that it makes.
"""

from __future__ import annotations

import argparse
import time

from app.lab import netns
from bench.support.report import Report
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.control.controller import Controller
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from tests.probes.monitor.actions.flood import PORT, Others, flooding, generator_of, received
from tests.support.veth import End, veth_pair

WINDOW = 1.0
LIMIT = 1000
"""Packets of the flood that may pass in a second."""
_STEP_S = 0.1
_BURST = LIMIT * 0.1
"""Packets that may pass at once."""
POLICY = "flood: rate(packets on udp dport:2000) > 10k/s -> limit {}pps {}on udp dport:2000"


def acted(controller: Controller) -> dict[str, int]:
    """Packets that the actions of the policies took, or would have."""
    info = controller.monitor()
    assert info
    return {each.policy.name: each.action.packets for each in info.policies if each.action}


def measure(report: Report, compiler: Compiler, left: End, right: End, hook: Hook,
            who: str, rate: int, seconds: float) -> None:  # fmt: skip
    """Flood one port on a hook. `who` is `culprit ` for an action on the alarm's culprit."""
    with Controller() as controller:
        options = MonitorOptions(bits=8, interval=WINDOW, ingress=hook, allow_actions=True)
        controller.watch_metrics(right.ifname, options)
        controller.set_policy(Policy.parse_short(POLICY.format(LIMIT, who)))
        others_policy = f"others: always -> dry drop on udp dport:{PORT}"
        controller.set_policy(Policy.parse_short(others_policy))
        others = Others(left, right)
        with generator_of(compiler, left, right) as generator:
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
    name = f"{hook.value}{' on the culprit' if who else ''}"
    report.row(f"{name}: flood", f"{sent / took:,.0f} packets/s")
    text = f"{limited_s:.1f} s after the begin, windows of {WINDOW:g} s"
    report.target(f"{name}: limited to {LIMIT} packets/s", text, 0 < limited_s < 2 * WINDOW + 0.3)
    text = f"{others.sent} sent, {seen} at the hook, {others.arrived} arrived"
    report.target(f"{name}: another conversation", text, seen == others.arrived > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=500_000, help="packets a second of the flood")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each flood")
    options = parser.parse_args()
    report = Report(f"A flood of {options.rate:,} packets/s")
    with Compiler() as compiler:
        for hook, who in ((Hook.TC_INGRESS, ""), (Hook.XDP, "")):
            with veth_pair() as (left, right), netns.inside(right.ns):
                measure(report, compiler, left, right, hook, who, options.rate, options.seconds)
    report.end()


if __name__ == "__main__":
    main()
