"""Programs in other people's styles, each metric held against the truth.

S1.5: nothing but the data plane is given. S1.7, S1.8 and S1.10: kinds, layouts and types are found
out, and each value is converted. S1.14 and S1.15: what a snapshot has is private to its window, and
everything else is shared.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.lab.netns import inside
from bpf.attach.attachment import Hook
from bpf.syscall import prog_test_run
from probes.config.model import parse
from probes.control.controller import Controller
from probes.hooks import Hooks
from probes.snapshot import Snapshot
from probes.tables.conversion import objects
from tests.probes.foreign.packets import FRAMES
from tests.probes.foreign.programs import PROGRAMS, Foreign
from tests.probes.foreign.truth import datarec
from tests.probes.running import UDP
from tests.support.veth import veth_pair

FOREIGN = Path(__file__).parent


@pytest.fixture(scope="module")
def controller() -> Iterator[Controller]:
    """A controller whose hooks get only what a test runs through them."""
    with Controller() as made:
        made._hooks = Hooks(lambda point: None)
        yield made


def configured(program: Foreign, metrics: Sequence[str], *, snapshot: bool) -> Any:
    source = (FOREIGN / f"{program.file}.c").read_text(encoding="utf-8")
    direction = {
        "interface": "lo",
        "hook": "xdp" if program.hook is Hook.XDP else "tc",
        "source": program.change(source),
        "metrics": [
            {
                "name": name,
                "map": name,
                "snapshot": snapshot,
                "agg": program.agg.get(name, ""),
                "types": program.types.get(name, {}),
            }
            for name in metrics
        ],
        **program.given,
    }
    side = "egress" if program.hook is Hook.TC_EGRESS else "ingress"
    return parse({"name": "foreign", "interval": 0, side: direction, "maps": program.maps}, "test")


def tables(snapshots: Sequence[Snapshot]) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for snapshot in snapshots:
        assert snapshot.schema is not None
        found[snapshot.metric] = list(objects(snapshot.schema, snapshot.rows))
    return found


def in_order(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """A hash's entries come in any order; all else in its own."""
    return {
        name: sorted(each, key=repr) if each and "key" in each[0] else each
        for name, each in rows.items()
    }


@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "plain"])
@pytest.mark.parametrize("style", PROGRAMS)
def test_each_export_equals_the_truth(controller: Controller, style: str, snapshot: bool) -> None:
    """S1.5, S1.7, S1.8, S1.10, S1.14, S1.15: all fields, in two windows one after the other."""
    program = PROGRAMS[style]
    os.sched_setaffinity(0, {0})
    first, second = FRAMES[::2] + FRAMES[-3:], FRAMES[5:]
    expected = program.truth(first)
    controller.add(configured(program, list(expected), snapshot=snapshot), force=True)
    try:
        (point,) = controller.hooks()

        def window(frames: Sequence[bytes]) -> dict[str, list[dict[str, Any]]]:
            for frame in frames:
                run = prog_test_run(point.chain.fd, frame)
                assert run.verdict == program.verdicts(frame), frame
            return in_order(tables(controller.export("foreign")))

        assert window(first) == in_order(expected)
        # Queues and stacks are emptied by reading them; all else goes on where it is shared.
        goes_on = not snapshot and program.file != "queue"
        assert window(second) == in_order(program.truth(first + second if goes_on else second))
        ended = in_order(tables(controller.remove("foreign")))
        assert ended.keys() == expected.keys()
    finally:
        if controller.probes():
            controller.remove("foreign")


def test_packets_of_an_interface_are_what_is_counted() -> None:
    """S1.5: the same on a veth pair, with datagrams that are really sent."""
    program = PROGRAMS["per-CPU structs"]
    with veth_pair() as (left, right):
        with inside(right.ns):
            controller = Controller()
            config = configured(program, ["total", "stats"], snapshot=True)
            config = config.model_copy(
                update={"ingress": config.ingress.model_copy(update={"interface": right.ifname})}
            )
            controller.add(config)
            inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            inbox.bind((right.ipv4, 9))
            inbox.settimeout(2)
        with inside(left.ns):
            outbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with inbox, outbox, controller:
            for window in range(2):
                for number in range(100 + window):
                    outbox.sendto(bytes(number), (right.ipv4, 9))
                    inbox.recv(2000)
                found = tables(controller.export("foreign"))
                (udp,) = (row["value"] for row in found["stats"] if row["key"] == UDP)
                assert udp == datarec([42 + number for number in range(100 + window)])
