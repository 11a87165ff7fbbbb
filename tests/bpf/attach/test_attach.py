"""Attaching beside others, on real interfaces of namespaces, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from pyroute2 import IPRoute

from app.lab.netns import fresh, inside
from bpf import links, syscall
from bpf.abi import AttachType, ProgType
from bpf.attach import order
from bpf.attach.attachment import XDP_FLAGS_DRV_MODE, Hook, attach
from bpf.attach.chain import Chain, Stage
from bpf.attach.interface import find
from bpf.compiler import Compiled, Compiler
from bpf.errors import KernelError, ProbedeckError
from bpf.programs.program import Program
from tests.bpf.tools import datagrams, ok_program, packets, python, send, xdp_id
from tests.support.descriptors import open_fds
from tests.support.kernel import TC_MODE, needs_tcx
from tests.support.veth import End

pytestmark = pytest.mark.usefixtures("state")


@contextmanager
def probed(hook: Hook, counters: dict[Hook, Compiled]) -> Iterator[tuple[Chain, Program]]:
    """A chain with one counting probe, to attach."""
    with closing(Chain(hook.prog_type)) as chain:
        stage = Stage()
        with closing(Program(counters[hook], "counter", next_fd=stage.next_fd)) as probe:
            chain.append(stage, probe.fd)
            yield chain, probe


@contextmanager
def foreign_xdp(compiler: Compiler, end: End, *, by_link: bool) -> Iterator[Program]:
    """Somebody else's XDP program, which counts and passes."""
    source = """\
BPF_ARRAY(count, u64, 1);
int firewall(struct xdp_md *ctx)
{
    u32 zero = 0;
    count.increment(zero);
    return XDP_PASS;
}
"""
    with (
        compiler.compile(source, ProgType.XDP) as compiled,
        closing(Program(compiled, "firewall")) as program,
        inside(end.ns),
    ):
        if by_link:
            fd = links.link_create(program.fd, end.ifindex, AttachType.XDP, XDP_FLAGS_DRV_MODE)
            yield program
            os.close(fd)
        else:
            with IPRoute() as socket:
                attributes = [("IFLA_XDP_FD", program.fd), ("IFLA_XDP_FLAGS", 0)]
                socket.link("set", index=end.ifindex, xdp={"attrs": attributes})
            yield program


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "mode"),
    [(Hook.XDP, "native"), (Hook.TC_INGRESS, TC_MODE), (Hook.TC_EGRESS, TC_MODE)],
)
def test_a_probe_sees_every_packet_and_passes_it_on_until_it_is_detached(
    counters: dict[Hook, Compiled], pair: tuple[End, End], hook: Hook, mode: str
) -> None:
    left, right = pair
    at = left if hook is Hook.TC_EGRESS else right
    before = open_fds()
    with probed(hook, counters) as (chain, probe):
        with inside(at.ns):
            attachment = attach(hook, chain.fd, find(at.ifname))
        note = "tcx: kernel 6.6 has it" if mode == "clsact" else ""
        assert (attachment.mode, attachment.note) == (mode, note)
        assert send(left, right, 23) == 23
        assert datagrams(probe) == 23
        with inside(at.ns):
            attachment.close()
        assert send(left, right, 3) == 3
        assert datagrams(probe) == 23
    assert open_fds() <= before


def test_where_native_xdp_is_impossible_generic_is_taken_and_the_note_says_why(
    counters: dict[Hook, Compiled],
) -> None:
    ns = fresh()
    with inside(ns), probed(Hook.XDP, counters) as (chain, _):
        attachment = attach(Hook.XDP, chain.fd, find("lo"))
        assert attachment.mode == "generic"
        refused, marked = attachment.note.split("; ")
        assert refused == "native: Operation not supported"
        assert marked == "large segments count as one packet"
        assert xdp_id(1) > 0
        attachment.close()
        assert xdp_id(1) == 0
    os.close(ns)


@pytest.mark.parametrize("by_link", [True, False], ids=["its link", "its netlink"])
def test_a_program_in_the_way_is_named_and_goes_on(
    compiler: Compiler,
    counters: dict[Hook, Compiled],
    pair: tuple[End, End],
    by_link: bool,
) -> None:
    left, right = pair
    with foreign_xdp(compiler, right, by_link=by_link) as foreign:
        before = open_fds()
        with probed(Hook.XDP, counters) as (chain, _), inside(right.ns):
            with pytest.raises(ProbedeckError) as caught:
                attach(Hook.XDP, chain.fd, find(right.ifname))
            assert caught.value.message == (
                f"XDP program 'firewall' id {foreign.info().id} is on right and is left alone"
            )
            assert "--ingress auto" in caught.value.hint
        assert open_fds() <= before
        counted = packets(foreign)
        assert send(left, right, 5) == 5
        assert packets(foreign) >= counted + 5


def test_the_console_may_meet_a_foreign_program_inside_its_event_loop(
    compiler: Compiler, counters: dict[Hook, Compiled], pair: tuple[End, End]
) -> None:
    async def meet() -> None:
        with (
            probed(Hook.XDP, counters) as (chain, _),
            pytest.raises(ProbedeckError, match="firewall"),
        ):
            attach(Hook.XDP, chain.fd, find("right"))

    with foreign_xdp(compiler, pair[1], by_link=False):
        asyncio.run(meet())


def test_an_interface_that_went_away_is_refused_with_every_way_that_was_tried(
    counters: dict[Hook, Compiled], pair: tuple[End, End]
) -> None:
    with inside(pair[0].ns):
        gone = find("left")
    ns = fresh()
    with inside(ns):
        for hook in Hook:
            with probed(hook, counters) as (chain, _), pytest.raises(KernelError) as caught:
                attach(hook, chain.fd, gone)
            assert f"left takes no {hook.value} program" in caught.value.message
            assert "No such device" in caught.value.message
    os.close(ns)


def test_without_privileges_the_error_says_which_are_needed() -> None:
    script = """
import os, tempfile
from pathlib import Path
from app.lab.netns import unshare_net
from bpf.attach import attachment
from bpf.attach.attachment import Hook, attach
from bpf.attach.chain import Chain
from bpf.errors import KernelError
from bpf.attach.interface import find
from bpf.abi import (ProgType)
unshare_net()
chain = Chain(ProgType.SCHED_CLS)
lo = find("lo")
os.setresuid(65534, 65534, 65534)
with tempfile.TemporaryDirectory() as state:
    for directory in (Path(state), Path("/proc/nowhere")):
        attachment.STATE = directory
        try:
            attach(Hook.TC_INGRESS, chain.fd, lo, by_link=False)
        except KernelError as error:
            print(error.message)
try:
    Chain(ProgType.XDP)
except KernelError as error:
    print(error)
"""
    with python(script) as process:
        said, _ = process.communicate(timeout=10)
    attached, recorded, loaded = said.splitlines()
    assert attached == "not allowed to attach to lo"
    assert recorded.startswith("cannot keep a record of the filter: ")
    assert loaded == (
        "not allowed to load packet programs; "
        "run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON"
    )


def test_a_kernel_without_tcx_takes_clsact_and_the_note_says_which_has_it(
    counters: dict[Hook, Compiled], pair: tuple[End, End], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("bpf.attach.attachment.link_create", refuse)
    left, right = pair
    with probed(Hook.TC_INGRESS, counters) as (chain, probe), inside(right.ns):
        attachment = attach(Hook.TC_INGRESS, chain.fd, find("right"))
        assert (attachment.mode, attachment.note) == ("clsact", "tcx: kernel 6.6 has it")
        assert send(left, right, 7) == 7
        assert datagrams(probe) == 7
        attachment.close()


def test_two_of_us_share_tc_and_both_see_the_packets(
    counters: dict[Hook, Compiled], pair: tuple[End, End]
) -> None:
    left, right = pair
    with (
        probed(Hook.TC_INGRESS, counters) as (one, first),
        probed(Hook.TC_INGRESS, counters) as (two, second),
        ExitStack() as stack,
    ):
        with inside(right.ns):
            for chain in (one, two):
                stack.callback(attach(Hook.TC_INGRESS, chain.fd, find("right")).close)
        assert send(left, right, 7) == 7
        assert datagrams(first) == datagrams(second) == 7


@needs_tcx
@pytest.mark.parametrize("hook", [Hook.TC_INGRESS, Hook.TC_EGRESS])
def test_a_tcx_program_that_ends_the_line_comes_after_ours(
    counters: dict[Hook, Compiled], pair: tuple[End, End], hook: Hook
) -> None:
    left, right = pair
    at = left if hook is Hook.TC_EGRESS else right
    kind = AttachType.TCX_EGRESS if hook is Hook.TC_EGRESS else AttachType.TCX_INGRESS
    theirs = ok_program()
    with ExitStack() as stack:
        stack.callback(os.close, theirs)
        chain, probe = stack.enter_context(probed(hook, counters))
        with inside(at.ns):
            stack.callback(os.close, links.link_create(theirs, at.ifindex, kind))
            stack.callback(attach(hook, chain.fd, find(at.ifname)).close)
            ours, other = order.on_hook(hook, at.ifindex)
        assert (ours.id, other.id) == (chain.info().id, syscall.prog_info(theirs).id)
        assert str(other) == f"TCX program 'theirs' id {other.id}"
        assert send(left, right, 100) == 100
        assert datagrams(probe) == 100


def test_what_is_in_the_way_on_an_interface_above_is_not_called_a_program_of_this_one(
    counters: dict[Hook, Compiled], pair: tuple[End, End]
) -> None:
    """The kernel answers EEXIST for this too."""
    _, right = pair
    with inside(right.ns), IPRoute() as socket, ExitStack() as stack:
        socket.link("add", ifname="above", kind="macvlan", link=right.ifindex)
        first, _ = stack.enter_context(probed(Hook.XDP, counters))
        second, _ = stack.enter_context(probed(Hook.XDP, counters))
        stack.callback(attach(Hook.XDP, first.fd, find("above")).close)
        with pytest.raises(KernelError) as caught:
            attach(Hook.XDP, second.fd, find("right"))
        assert caught.value.message == (
            "right takes no xdp program (native: an interface above it has an XDP program; "
            "generic: an interface above it has an XDP program)"
        )
