"""Attaching as older kernels need it: taken away again by us, and nothing else is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute

from app.lab.netns import fresh, inside
from bpf.attach import attachment, order
from bpf.attach.attachment import Attachment, Hook, attach
from bpf.attach.interface import find
from bpf.compiler import Compiled
from bpf.errors import KernelError
from bpf.programs.program import Program
from tests.bpf.tools import datagrams, ended, ok_program, python, send
from tests.support.veth import End

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


def detach(held: Attachment, end: End) -> None:
    with inside(end.ns):
        held.close()


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


@pytest.mark.parametrize("hook", TC)
def test_a_probe_sees_every_packet_and_passes_it_on_until_it_is_detached(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path, hook: Hook
) -> None:
    left, right = pair
    at = left if hook is Hook.TC_EGRESS else right
    with probed(hook, counters) as probe:
        held = attach_old(hook, probe, at)
        assert (held.mode, held.note) == ("clsact", "")
        assert len(list(state.iterdir())) == 1
        assert send(left, right, 23) == 23
        assert datagrams(probe) == 23
        detach(held, at)
        assert send(left, right, 3) == 3
        assert datagrams(probe) == 23
    assert list(state.iterdir()) == []
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
            parent=TC[hook], prio=1, protocol=3, direct_action=True,
        )  # fmt: skip
        theirs = filters(at, TC[hook])
        held = attach_old(hook, probe, at)
        assert len(filters(at, TC[hook])) == 2
        assert send(left, right, 5) == 5
        assert datagrams(probe) == datagrams(foreign) == 5
        detach(held, at)
        assert filters(at, TC[hook]) == theirs
        assert "clsact" in qdiscs(at)
        assert send(left, right, 2) == 2
        assert datagrams(foreign) == 7


@pytest.mark.parametrize("hook", TC)
def test_a_filter_that_took_our_place_stays(
    counters: dict[Hook, Compiled], pair: tuple[End, End], hook: Hook
) -> None:
    _, right = pair
    with probed(hook, counters) as foreign, probed(hook, counters) as probe:
        held = attach_old(hook, probe, right)
        handle = probe.info().id
        tc(
            right, "replace-filter", "bpf", right.ifindex, handle, fd=foreign.fd, name="theirs",
            parent=TC[hook], prio=1, protocol=3, direct_action=True,
        )  # fmt: skip
        assert filters(right, TC[hook]) == {(1, handle, "theirs")}
        detach(held, right)
        assert filters(right, TC[hook]) == {(1, handle, "theirs")}


def test_an_attachment_that_fails_leaves_no_record(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path
) -> None:
    _, right = pair
    with probed(Hook.TC_INGRESS, counters) as probe:
        held = attach_old(Hook.TC_INGRESS, probe, right)
        with inside(right.ns), pytest.raises(OSError, match="exists"):
            attachment.attach_tc(probe.fd, right.ifindex, egress=False)
        detach(held, right)
        assert list(state.iterdir()) == []


HOLDER = """
import sys
from pathlib import Path
from bpf.machine import enter_network
from bpf.attach import attachment, order
from bpf.attach.attachment import Hook, attach
from bpf.attach.chain import Chain
from bpf.attach.interface import find
enter_network(int(sys.argv[1]))
attachment.STATE = Path(sys.argv[2])
hooks = (Hook.TC_INGRESS, Hook.TC_EGRESS)
chains = [Chain(hook.prog_type) for hook in hooks]
for hook, chain in zip(hooks, chains):
    print(attach(hook, chain.fd, find("right"), by_link=False).mode, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_process_left_goes_with_the_next_attachment_and_not_while_it_lives(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path
) -> None:
    left, right = pair
    with python(HOLDER, str(right.ns), str(state), pass_fds=[right.ns]) as process:
        assert process.stdout is not None
        modes = [process.stdout.readline().strip() for _ in TC]
        assert modes == ["clsact", "clsact"]
        with inside(right.ns):
            assert attachment.reap() == 0
        process.kill()
        assert ended(process.pid, 5)

    assert len(filters(right, INGRESS)) == len(filters(right, EGRESS)) == 1
    assert len(list(state.iterdir())) == 2

    elsewhere = fresh()
    with inside(elsewhere):
        assert attachment.reap() == 0
    os.close(elsewhere)
    assert len(list(state.iterdir())) == 2

    with probed(Hook.TC_INGRESS, counters) as probe:
        held = attach_old(Hook.TC_INGRESS, probe, right)
        assert filters(right, INGRESS) == {(1, probe.info().id, "probedeck")}
        assert not filters(right, EGRESS)
        assert len(list(state.iterdir())) == 1
        detach(held, right)
    assert send(left, right, 1) == 1


def test_a_process_id_that_came_back_is_not_taken_for_the_dead_one(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path
) -> None:
    _, right = pair
    with probed(Hook.TC_INGRESS, counters) as probe:
        attach_old(Hook.TC_INGRESS, probe, right)
        (path,) = state.iterdir()
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "started": "1"}))
        with inside(right.ns):
            assert attachment.reap() == 1
    assert not filters(right, INGRESS)


RECORD = {"pid": 1, "started": "", "netns": 1, "ifindex": 1, "prog_id": 1, "kind": "ingress"}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"pid": 1}', "\xff",
        json.dumps({**RECORD, "prog_id": "../../victim"}),
        json.dumps({**RECORD, "ifindex": True}),
        json.dumps({**RECORD, "kind": "xdp"}),
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_is_thrown_away(state: Path, text: str) -> None:
    state.mkdir(mode=0o700)
    (state / "1-1-xdp.json").write_text(text, encoding="latin-1")
    assert attachment.reap() == 0
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("hook", TC)
@pytest.mark.parametrize("priority", [1, 49151])
def test_ours_runs_before_a_filter_that_ends_the_line(
    counters: dict[Hook, Compiled], pair: tuple[End, End], hook: Hook, priority: int
) -> None:
    left, right = pair
    at = left if hook is Hook.TC_EGRESS else right
    foreign = ok_program()
    tc(at, "add", "clsact", at.ifindex)
    tc(
        at, "add-filter", "bpf", at.ifindex, 1, fd=foreign, name="theirs",
        parent=TC[hook], prio=priority, protocol=3, direct_action=True,
    )  # fmt: skip
    os.close(foreign)
    with probed(hook, counters) as probe:
        held = attach_old(hook, probe, at)
        assert send(left, right, 100) == 100
        assert datagrams(probe) == 100
        detach(held, at)
        assert [name for _, _, name in filters(at, TC[hook])] == ["theirs"]


def test_where_the_first_priority_is_another_protocols_the_next_one_is_taken(
    counters: dict[Hook, Compiled], pair: tuple[End, End]
) -> None:
    """A priority's filters are of one kind and protocol; what runs first is named."""
    _, right = pair
    foreign = ok_program()
    tc(right, "add", "clsact", right.ifindex)
    tc(
        right, "add-filter", "bpf", right.ifindex, 1, fd=foreign, name="theirs",
        parent=INGRESS, prio=1, protocol=0x0008, direct_action=True,
    )  # fmt: skip
    os.close(foreign)
    with probed(Hook.TC_INGRESS, counters) as probe:
        held = attach_old(Hook.TC_INGRESS, probe, right)
        assert (2, probe.info().id, "probedeck") in filters(right, INGRESS)
        with inside(right.ns):
            first, second = order.on_hook(Hook.TC_INGRESS, right.ifindex)
        assert str(first).startswith("clsact program 'theirs' id ")
        assert second.id == probe.info().id
        detach(held, right)
        assert len(filters(right, INGRESS)) == 1


def test_an_ingress_qdisc_of_others_takes_no_egress_program(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path
) -> None:
    """The kernel would run it on incoming packets instead, without a word."""
    _, right = pair
    tc(right, "add", "ingress", right.ifindex)
    with probed(Hook.TC_EGRESS, counters) as probe, pytest.raises(KernelError) as caught:
        attach_old(Hook.TC_EGRESS, probe, right)
    assert "ingress qdisc of another program" in caught.value.message
    assert list(state.iterdir()) == []
    with probed(Hook.TC_INGRESS, counters) as probe:
        detach(attach_old(Hook.TC_INGRESS, probe, right), right)


@pytest.mark.parametrize("damage", ["writable", "a link"])
def test_a_directory_that_others_could_write_to_is_not_trusted(
    counters: dict[Hook, Compiled], pair: tuple[End, End], state: Path, damage: str
) -> None:
    elsewhere = state.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    record = elsewhere / "1-1-ingress.json"
    record.write_text(json.dumps(RECORD))
    if damage == "writable":
        elsewhere.chmod(0o777)
        elsewhere.rename(state)
        record = state / record.name
    else:
        state.symlink_to(elsewhere)
    with probed(Hook.TC_INGRESS, counters) as probe, pytest.raises(KernelError, match="not safe"):
        attach_old(Hook.TC_INGRESS, probe, pair[1])
    assert record.exists()
    assert not filters(pair[1], INGRESS)


def test_other_users_keep_their_records_where_they_may(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attachment, "STATE", None)
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path}:/other")
    assert attachment._state_directory() == tmp_path
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    with pytest.raises(KernelError, match="RuntimeDirectory=probedeck"):
        attachment._state_directory()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert attachment._state_directory() == Path("/run/probedeck")
