"""Attaching as older kernels need it: taken away again by us, and nothing else is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from app.lab.netns import End, fresh, inside
from bpf import netlink
from bpf.attach import Attachment, Hook, attach
from bpf.compiler import Compiled
from bpf.interface import find
from bpf.program import Program
from tests.bpf.tools import datagrams, ended, python, send

INGRESS, EGRESS = 0xFFFFFFF2, 0xFFFFFFF3
pytestmark = pytest.mark.usefixtures("state")

TC = {Hook.TC_INGRESS: INGRESS, Hook.TC_EGRESS: EGRESS}


@contextmanager
def probed(hook: Hook, counters: dict[Hook, Compiled]) -> Iterator[Program]:
    with closing(Program(counters[hook], "counter")) as program:
        yield program


def attach_old(hook: Hook, program: Program, end: End) -> Attachment:
    with inside(end.ns):
        return attach(hook, program.fd, find(end.ifname), by_link=False)


def detach(attachment: Attachment, end: End) -> None:
    with inside(end.ns):
        attachment.close()


def filters(end: End, parent: int) -> set[tuple[int, int, str]]:
    """(priority, handle, name) of every filter; tc lists a filter's priority with handle 0."""
    with inside(end.ns), IPRoute() as socket:
        return {
            (f["info"] >> 16, f["handle"], str(f.get_nested("TCA_OPTIONS", "TCA_BPF_NAME")))
            for f in socket.get_filters(end.ifindex, 0, parent)
            if f["handle"]
        }


def tc(end: End, *arguments: Any, **options: Any) -> None:
    with inside(end.ns), IPRoute() as socket:
        socket.tc(*arguments, **options)


def qdiscs(end: End) -> list[str]:
    with inside(end.ns), IPRoute() as socket:
        return [q.get_attr("TCA_KIND") for q in socket.get_qdiscs(end.ifindex)]


def xdp(end: End) -> int:
    with inside(end.ns):
        return netlink.xdp_program(end.ifindex)


@pytest.mark.parametrize(
    ("hook", "mode"),
    [(Hook.XDP, "netlink native"), (Hook.TC_INGRESS, "clsact"), (Hook.TC_EGRESS, "clsact")],
)
def test_a_probe_sees_every_packet_and_passes_it_on_until_it_is_detached(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path, hook: Hook, mode: str
) -> None:
    left, right = pair
    at = left if hook is Hook.TC_EGRESS else right
    with probed(hook, counters) as probe:
        attachment = attach_old(hook, probe, at)
        assert (attachment.mode, attachment.note) == (mode, "")
        assert len(list(state.iterdir())) == 1
        assert send(left, right, 23) == 23
        assert datagrams(probe) == 23
        detach(attachment, at)
        assert send(left, right, 3) == 3
        assert datagrams(probe) == 23
    assert list(state.iterdir()) == []
    assert xdp(at) == 0
    assert not filters(at, INGRESS) | filters(at, EGRESS)


@pytest.mark.parametrize("hook", TC)
def test_filters_and_the_qdisc_of_others_stay(
    counters: dict[Hook, Compiled], pair: tuple[End, End], hook: Hook
) -> None:
    left, right = pair
    at = left if hook is Hook.TC_EGRESS else right
    with probed(hook, counters) as foreign, probed(hook, counters) as probe:
        tc(at, "add", "clsact", at.ifindex)
        tc(
            at, "add-filter", "bpf", at.ifindex, 1, fd=foreign.fd, name="theirs",
            parent=TC[hook], prio=netlink._PRIORITY, protocol=3, direct_action=True,
        )  # fmt: skip
        theirs = filters(at, TC[hook])
        attachment = attach_old(hook, probe, at)
        assert len(filters(at, TC[hook])) == 2
        assert send(left, right, 5) == 5
        assert datagrams(probe) == datagrams(foreign) == 5
        detach(attachment, at)
        assert filters(at, TC[hook]) == theirs
        assert "clsact" in qdiscs(at)
        assert send(left, right, 2) == 2
        assert datagrams(foreign) == 7


def test_an_xdp_program_that_took_our_place_stays(
    counters: dict[Hook, Compiled], pair: tuple[End, End]
) -> None:
    _, right = pair
    with probed(Hook.XDP, counters) as foreign, probed(Hook.XDP, counters) as probe:
        attachment = attach_old(Hook.XDP, probe, right)
        with inside(right.ns), IPRoute() as socket:
            attributes = [("IFLA_XDP_FD", foreign.fd), ("IFLA_XDP_FLAGS", 1 << 2)]
            socket.link("set", index=right.ifindex, xdp={"attrs": attributes})
        detach(attachment, right)
        assert xdp(right) == foreign.info().id


@pytest.mark.parametrize("hook", TC)
def test_a_filter_that_took_our_place_stays(
    counters: dict[Hook, Compiled], pair: tuple[End, End], hook: Hook
) -> None:
    _, right = pair
    with probed(hook, counters) as foreign, probed(hook, counters) as probe:
        attachment = attach_old(hook, probe, right)
        handle = probe.info().id
        tc(
            right, "replace-filter", "bpf", right.ifindex, handle, fd=foreign.fd, name="theirs",
            parent=TC[hook], prio=netlink._PRIORITY, protocol=3, direct_action=True,
        )  # fmt: skip
        assert filters(right, TC[hook]) == {(netlink._PRIORITY, handle, "theirs")}
        detach(attachment, right)
        assert filters(right, TC[hook]) == {(netlink._PRIORITY, handle, "theirs")}


def test_an_attachment_that_fails_leaves_no_record(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path
) -> None:
    _, right = pair
    with ExitStack() as stack:
        probes = [stack.enter_context(probed(Hook.XDP, counters)) for _ in range(2)]
        attachment = attach_old(Hook.XDP, probes[0], right)
        with inside(right.ns), pytest.raises(OSError, match="busy"):
            netlink.attach_xdp(probes[1].fd, right.ifindex, 1 << 2)
        assert [p.name for p in state.iterdir()] == [f"{xdp(right)}-{right.ifindex}-xdp.json"]
        detach(attachment, right)


HOLDER = """
import sys
from pathlib import Path
from app.lab.netns import setns
from bpf import netlink
from bpf.attach import Hook, attach
from bpf.chain import Chain
from bpf.interface import find
setns(int(sys.argv[1]))
netlink.STATE = Path(sys.argv[2])
chains = [Chain(hook.prog_type) for hook in Hook]
for hook, chain in zip(Hook, chains):
    print(attach(hook, chain.fd, find("right"), by_link=False).mode, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_attachment_and_not_while_it_lives(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path
) -> None:
    left, right = pair
    with python(HOLDER, str(right.ns), str(state), pass_fds=[right.ns]) as process:
        assert process.stdout is not None
        modes = [process.stdout.readline().strip() for _ in Hook]
        assert modes == ["netlink native", "clsact", "clsact"]
        with inside(right.ns):
            assert netlink.reap() == 0
        assert xdp(right) > 0
        process.kill()
        assert ended(process.pid, 5)

    assert xdp(right) > 0
    assert len(filters(right, INGRESS)) == len(filters(right, EGRESS)) == 1
    assert len(list(state.iterdir())) == 3

    elsewhere = fresh()
    with inside(elsewhere):
        assert netlink.reap() == 0
    os.close(elsewhere)
    assert len(list(state.iterdir())) == 3

    with probed(Hook.XDP, counters) as probe:
        attachment = attach_old(Hook.XDP, probe, right)
        assert xdp(right) == probe.info().id
        assert not filters(right, INGRESS) | filters(right, EGRESS)
        assert len(list(state.iterdir())) == 1
        detach(attachment, right)
    assert send(left, right, 1) == 1


def test_a_process_id_that_came_back_is_not_taken_for_the_dead_one(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path
) -> None:
    _, right = pair
    with probed(Hook.XDP, counters) as probe:
        attach_old(Hook.XDP, probe, right)
        (path,) = state.iterdir()
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "started": "1"}))
        with inside(right.ns):
            assert netlink.reap() == 1
    assert xdp(right) == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\xff"])
def test_a_record_that_cannot_be_read_is_thrown_away(state: Path, text: str) -> None:
    state.mkdir()
    (state / "1-1-xdp.json").write_text(text, encoding="latin-1")
    assert netlink.reap() == 0
    assert list(state.iterdir()) == []
