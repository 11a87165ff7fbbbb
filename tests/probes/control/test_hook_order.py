"""First in line on a hook, and the hook that suits the interface, for every kind of probe."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from app.lab import netns
from app.outputs.views import WINDOWS
from bpf import features, links, syscall
from bpf.abi import BEFORE, AttachType
from bpf.attach import attachment, ingress, rtnetlink
from bpf.attach.attachment import Hook, attach
from bpf.attach.interface import find
from bpf.attach.rtnetlink import CLSACT_INGRESS
from bpf.compiler import Compiler
from bpf.errors import ProbedeckError
from probes.control import controller as controllers
from probes.control import hook_watch
from probes.control.builtin_probes import FLOW_PROBE
from probes.control.controller import Controller
from probes.flow.options import FlowOptions
from probes.monitor.options import MonitorOptions
from probes.monitor.state import METRICS_TABLE, PROBE
from probes.snapshot import HookStatus, Snapshot
from tests.bpf.tools import ok_program, xdp_id
from tests.probes.deck import Deck, deck
from tests.probes.program.tools import PACKETS
from tests.support.compiling import Shared
from tests.support.kernel import TC_MODE, needs_tcx
from tests.support.sight import becomes

__all__ = ["deck"]

PORTABLE = """\
#include "probe.h"
BPF_ARRAY(packets, u64, 1);
int count(CONTEXT *ctx)
{
    u8 *frame = (void *)(long)ctx->data;
    u32 zero = 0;
    u64 *n = packets.lookup(&zero);
    if (frame + 34 <= (u8 *)(long)ctx->data_end && frame[12] == 8 && frame[23] == 17 && n)
        lock_xadd(n, 1);
    return VERDICT_PASS;
}
"""
TUNSETIFF, IFF_TUN, IFF_TAP, IFF_NO_PI = 0x400454CA, 1, 2, 0x1000


@contextmanager
def foreign_tcx(
    ifindex: int, kind: AttachType, flags: int = 0, name: str = "theirs"
) -> Iterator[str]:
    """A program of others that returns TC_ACT_OK; how it is called."""
    program = ok_program(name)
    link = links.link_create(program, ifindex, kind, flags)
    try:
        yield f"TCX program {name!r} id {syscall.prog_info(program).id}"
    finally:
        os.close(link)
        os.close(program)


@contextmanager
def foreign_xdp(name: str) -> Iterator[str]:
    program = features.load_passing(Hook.XDP)
    attachment = attach(Hook.XDP, program, find(name))
    try:
        yield f"XDP program 'doctor' id {syscall.prog_info(program).id}"
    finally:
        attachment.close()
        os.close(program)


def start_all(deck: Deck) -> None:
    """The flow probe, the monitor and a user's probe, with nothing said about hooks.

    Their windows end when the test ends them.
    """
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(interval=300))
    deck.controller.watch_metrics("right", MonitorOptions(bits=4, interval=300))
    deck.controller.add(deck.config(PORTABLE, PACKETS))


def counted(deck: Deck) -> tuple[int, int, int]:
    """Datagrams to the watched end: by flows, by the monitor, by the user's probe."""
    (flows,) = deck.controller.export("flow")
    monitor = next(t for t in deck.controller.export(PROBE) if t.metric == METRICS_TABLE)
    (user,) = deck.controller.export("probe")
    mine = flows.rows[(flows.rows["protocol"] == 17) & (flows.rows["direction"] == 0)]
    return (
        int(mine["packets"].sum()),
        int(monitor.rows["udp_packets"][0]),
        int(user.rows["value"][0]),
    )


def ingress_of(controller: Controller) -> HookStatus:
    (found,) = (each for each in controller.hook_status() if each.hook != "tc egress")
    return found


def window_row(snapshot: Snapshot) -> dict[str, Any]:
    """Its row of the windows table."""
    (row,) = WINDOWS.records(snapshot, nested=False)
    return dict(zip(WINDOWS.header, row, strict=True))


@pytest.mark.slow
@needs_tcx
def test_the_default_on_a_veth_is_tcx_first_in_line_for_every_probe(deck: Deck) -> None:
    with foreign_tcx(deck.right.ifindex, AttachType.TCX_INGRESS):
        start_all(deck)
        assert ingress_of(deck.controller) == HookStatus(
            "right", "tc ingress", "tcx", "veth: native XDP takes its peer's TSO away"
        )
        deck.receive(100)
        assert counted(deck) == (100, 100, 100)
    assert deck.said("info", "right")[0] == (
        "tc ingress: tcx (veth: native XDP takes its peer's TSO away)"
    )
    assert deck.said("warning", "right") == []


@needs_tcx
def test_path_tracing_is_first_in_line_too(deck: Deck) -> None:
    with foreign_tcx(deck.right.ifindex, AttachType.TCX_EGRESS):
        deck.controller.paths.configure("right")
        deck.controller.trace(deck.left.ipv4)
        assert ingress_of(deck.controller).mode == "tcx"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _ in range(100):
                sock.sendto(b"x", (deck.left.ipv4, 9))
        assert deck.controller.traced()[0].packets == 100


@pytest.mark.slow
def test_so_it_is_where_the_kernel_has_no_tcx(
    deck: Deck, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attachment, "STATE", tmp_path / "state")
    deck.controller._hook_watch._by_link = False
    program = ok_program()
    with IPRoute() as route:
        route.tc("add", "clsact", deck.right.ifindex)
        route.tc(
            "add-filter", "bpf", deck.right.ifindex, 1, fd=program, name="theirs",
            parent=CLSACT_INGRESS, prio=1, protocol=3, direct_action=True,
        )  # fmt: skip
        os.close(program)
        start_all(deck)
        deck.receive(100)
        assert counted(deck) == (100, 100, 100)
        assert ingress_of(deck.controller).mode == "clsact"
        route.tc("del", "clsact", deck.right.ifindex)
        assert [point.mode for point in deck.controller._hooks.look()] == ["removed", "removed"]


@pytest.mark.slow
def test_another_xdp_program_is_named_and_packets_are_counted_at_tc(deck: Deck) -> None:
    with foreign_xdp("right") as foreign:
        theirs = xdp_id(deck.right.ifindex)
        start_all(deck)
        deck.receive(100)
        assert counted(deck) == (100, 100, 100)
        assert ingress_of(deck.controller) == HookStatus(
            "right", "tc ingress", TC_MODE, f"{foreign} is on right", (foreign,)
        )
        assert xdp_id(deck.right.ifindex) == theirs
        assert deck.said("warning", "right") == [
            f"tc ingress: {TC_MODE} ({foreign} is on right); "
            f"{foreign} runs first: packets that it drops or redirects are not counted"
        ]
        window = window_row(deck.controller.export("flow")[0])
        assert window["schema"] == "windows/7"
        assert window["hooks"] == f"tc ingress {TC_MODE}; tc egress {TC_MODE}"
        assert window["hook_reason"] == f"{foreign} is on right"
        assert window["runs_before"] == foreign
        window = window_row(deck.controller.export("probe")[0])
        assert (window["hooks"], window["runs_before"]) == (f"tc ingress {TC_MODE}", foreign)
        with pytest.raises(ProbedeckError, match=rf"{foreign} is on right and is left alone"):
            deck.controller.add(deck.config(PORTABLE, PACKETS, name="mine", hook="xdp"))


@pytest.mark.parametrize("hook", ["xdp", "tc"])
def test_a_hook_that_a_configuration_names_is_taken(deck: Deck, hook: str) -> None:
    info = deck.controller.add(deck.config(PORTABLE, PACKETS, hook=hook))
    found = {"xdp": ("xdp", "native"), "tc": ("tc ingress", TC_MODE)}[hook]
    assert (info.programs[0].hook, info.programs[0].mode) == found
    assert ingress_of(deck.controller).reason == ""
    # The others join native XDP where it is in use: its cost is paid already.
    deck.controller.start(FLOW_PROBE, "right", FlowOptions())
    assert ingress_of(deck.controller).hook == found[0]


@needs_tcx
def test_who_comes_and_goes_is_told(deck: Deck, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_watch, "PERIOD", 0.02)
    deck.controller.start(FLOW_PROBE, "right", FlowOptions())
    with foreign_tcx(deck.right.ifindex, AttachType.TCX_INGRESS, BEFORE) as foreign:
        text = (
            f"tc ingress: {foreign} runs first: packets that it drops or redirects are not counted"
        )
        assert becomes(lambda: deck.said("warning", "right") == [text], 5)
        assert ingress_of(deck.controller).before == (foreign,)
        (snapshot,) = deck.controller.export("flow")
        assert [each.before for each in snapshot.hooks] == [(foreign,), ()]
    gone = "tc ingress: no other program runs first any more"
    assert becomes(lambda: gone in deck.said("info", "right"), 5)
    assert ingress_of(deck.controller).before == ()
    # Another probedeck is no alarm.
    with foreign_tcx(deck.right.ifindex, AttachType.TCX_INGRESS, BEFORE, "probedeck") as other:
        text = text.replace(foreign, other)
        assert becomes(lambda: text in deck.said("info", "right"), 5)
        assert len(deck.said("warning", "right")) == 1
        status = ingress_of(deck.controller)
        assert (status.before, status.foreign) == ((other,), [])


def test_programs_of_ours_are_nobody_elses(deck: Deck) -> None:
    """A probe that insists on XDP, beside flows at TC."""
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(ingress="tc"))
    deck.controller.add(deck.config(PORTABLE, PACKETS, hook="xdp"))
    assert deck.controller._hooks.look() == []
    assert {each.before for each in deck.controller.hook_status()} == {()}


def stacked(kind: str, stack: ExitStack) -> str:
    """Make an interface of a kind, in a new namespace; return its name."""
    space = netns.fresh()
    stack.callback(os.close, space)
    stack.enter_context(netns.inside(space))
    if kind in ("tun", "tap"):
        device = os.open("/dev/net/tun", os.O_RDWR)
        stack.callback(os.close, device)
        flags = IFF_NO_PI | (IFF_TUN if kind == "tun" else IFF_TAP)
        ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"stacked", flags))
        return "stacked"
    with IPRoute() as route:
        route.link("add", ifname="below", kind="veth", peer={"ifname": "other"})
        below = socket.if_nametoindex("below")
        more: dict[str, Any] = {"link": below} if kind in ("macvlan", "vlan") else {}
        if kind == "vlan":
            more["vlan_id"] = 5
        try:
            route.link("add", ifname="stacked", kind=kind, **more)
        except NetlinkError:
            pytest.skip(f"this kernel has no {kind}")
    return "stacked"


@pytest.mark.parametrize("kind", ["macvlan", "bridge", "vlan", "bond", "tun", "tap", "wireguard"])
def test_stacked_interfaces_are_counted_at_tc(
    kind: str, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "Compiler", lambda: Shared(compiler))
    with ExitStack() as stack:
        name = stacked(kind, stack)
        controller = stack.enter_context(Controller())
        controller.start(FLOW_PROBE, name, FlowOptions())
        status = ingress_of(controller)
        assert (status.hook, status.mode) == ("tc ingress", TC_MODE)
        if kind in ("tun", "wireguard"):
            assert status.reason == "no Ethernet header"
        else:
            assert status.reason.endswith(" is a virtual interface")


@pytest.mark.parametrize("kind", ["vlan", "bond", "team", "wireguard", "netkit"])
def test_so_are_the_kinds_that_this_kernel_may_not_have(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rtnetlink, "link", lambda _: rtnetlink.LinkInfo(kind, 0, ()))
    choice = ingress.choose(replace(find("lo"), name="stacked"))
    assert (choice.hook, choice.reason) == (Hook.TC_INGRESS, f"{kind} is a virtual interface")


@pytest.fixture
def as_nic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the veth taken for a network card with native XDP."""
    monkeypatch.setattr(ingress, "_virtual_kind", lambda _: "")
    monkeypatch.setattr(features, "driver", lambda _: "ixgbe")
    monkeypatch.setattr(features, "receive_offloads", lambda _: {})
    monkeypatch.setattr(features, "takes_tags", lambda _: True)


@pytest.mark.slow
@pytest.mark.usefixtures("as_nic")
def test_a_network_card_with_native_xdp_is_counted_there_and_its_pause_is_told_first(
    deck: Deck,
) -> None:
    start_all(deck)
    assert ingress_of(deck.controller) == HookStatus(
        "right", "xdp", "native", "ixgbe runs XDP itself"
    )
    deck.receive(10)
    assert counted(deck) == (10, 10, 10)
    events = [item for item in deck.items if not isinstance(item, Snapshot)]
    said = [event.text for event in events if event.source == "right"]
    assert said[0].startswith("ixgbe may make its rings anew")
    assert said[1] == "xdp: native (ixgbe runs XDP itself)"


@pytest.mark.usefixtures("as_nic")
@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("receive_offloads", {"rx-lro": True}, "rx-lro on, which native XDP turns off"),
        ("native_xdp", False, "ixgbe has no native XDP"),
        ("driver", "virtio_net", "virtio_net: native XDP turns its receive offloads off"),
    ],
)
def test_a_network_card_that_would_lose_by_it_is_counted_at_tc(
    deck: Deck, monkeypatch: pytest.MonkeyPatch, attribute: str, value: object, reason: str
) -> None:
    monkeypatch.setattr(features, attribute, lambda _: value)
    assert ingress.choose(find("right")) == ingress.HookChoice(Hook.TC_INGRESS, reason, auto=True)


@pytest.mark.usefixtures("as_nic")
def test_a_card_that_takes_the_tags_of_its_vlans_off_is_counted_at_tc(
    deck: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = find("right")
    other = rtnetlink.LinkInfo("vlan", 0, (), lower=right.index + 1)
    monkeypatch.setattr(rtnetlink, "links", lambda: [other])
    assert ingress.choose(right).hook is Hook.XDP
    monkeypatch.setattr(rtnetlink, "links", lambda: [other, replace(other, lower=right.index)])
    choice = ingress.choose(right)
    assert choice.hook is Hook.TC_INGRESS
    assert choice.reason == "right takes the tags of its VLANs off before XDP"
    monkeypatch.setattr(features, "takes_tags", lambda _: False)
    assert ingress.choose(right).hook is Hook.XDP


STARTS: dict[str, Callable[[Deck], object]] = {
    "flow": lambda deck: deck.controller.start(FLOW_PROBE, "right", FlowOptions()),
    "monitor": lambda deck: deck.controller.watch_metrics("right", MonitorOptions(bits=4)),
    "probe": lambda deck: deck.controller.add(deck.config(PORTABLE, PACKETS)),
}


@pytest.mark.usefixtures("as_nic")
@pytest.mark.parametrize("kind", [*STARTS, "path"])
def test_where_the_driver_refuses_native_xdp_tc_takes_its_place(deck: Deck, kind: str) -> None:
    """As ena, ixgbe and others do with jumbo frames."""
    for end in (deck.left, deck.right):
        with netns.inside(end.ns), IPRoute() as route:
            route.link("set", index=end.ifindex, mtu=9000)
    if kind == "path":
        deck.controller.paths.configure("right")
        deck.controller.trace(deck.left.ipv4)
    else:
        STARTS[kind](deck)
    status = ingress_of(deck.controller)
    assert (status.hook, status.mode) == ("tc ingress", TC_MODE)
    assert status.reason == "right takes no xdp program (native: Numerical result out of range)"
    assert xdp_id(deck.right.ifindex) == 0
    assert len(deck.controller.probes()) == 1


@pytest.mark.usefixtures("as_nic")
def test_who_asks_for_xdp_gets_generic_xdp_too(deck: Deck) -> None:
    for end in (deck.left, deck.right):
        with netns.inside(end.ns), IPRoute() as route:
            route.link("set", index=end.ifindex, mtu=9000)
    deck.controller.start(FLOW_PROBE, "right", FlowOptions(ingress="xdp"))
    status = ingress_of(deck.controller)
    assert (status.hook, status.mode) == ("xdp", "generic")
    assert status.reason == (
        "native: Numerical result out of range; large segments count as one packet"
    )
    # Generic XDP counts large segments once: others do not follow there.
    deck.controller.add(deck.config(PORTABLE, PACKETS))
    assert deck.info().programs[0].hook == "tc ingress"
