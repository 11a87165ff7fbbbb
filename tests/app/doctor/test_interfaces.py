"""The doctor on interfaces made for it: other programs, offloads, native XDP."""

from __future__ import annotations

import fcntl
import io
import os
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from app import doctor
from app.lab import netns
from bpf import features
from bpf.attach import ingress, interface
from bpf.attach.attachment import Hook, attach
from bpf.attach.chain import Chain
from bpf.errors import UsageError
from tests.app.doctor.report import examine
from tests.support.veth import End, veth_pair

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000


@pytest.fixture
def veth() -> Iterator[End]:
    with veth_pair() as (left, _), netns.inside(left.ns):
        yield left


def test_an_unknown_interface() -> None:
    out = io.StringIO()
    with pytest.raises(UsageError, match="no interface 'nonesuch0'"):
        doctor.run("nonesuch0", out=out)
    assert out.getvalue() == ""


def test_a_veth(veth: End) -> None:
    report = examine(veth.ifname)
    assert report.code == 0
    assert report.detail["state"] == "up"
    assert report.detail["driver"] == "veth"
    assert report.status["native XDP"] == "ok"
    assert report.detail["ingress auto"] == "TC: veth: native XDP takes its peer's TSO away"
    assert report.detail["tc ingress order"] == "no program is there yet"
    assert report.detail["tc egress order"] == "no program is there yet"


def test_several_interfaces_and_the_programs_before_ours(veth: End) -> None:
    report = examine("any")
    assert report.code == 0
    assert report.detail["watched"] == f"2: lo, {veth.ifname}"
    program = features.load_passing(Hook.XDP)
    theirs = attach(Hook.XDP, program, interface.find(veth.ifname))
    try:
        report = examine("any")
    finally:
        theirs.close()
        os.close(program)
    assert report.detail["tc ingress order"].startswith(f"on {veth.ifname}: XDP program")
    assert "tc egress order" not in report.detail
    with pytest.raises(UsageError, match="--cost measures one interface"):
        doctor.run("any", out=io.StringIO(), cost=True)


def test_an_interface_that_is_down_and_generic() -> None:
    space = netns.fresh()
    try:
        with netns.inside(space):
            report = examine("lo")
    finally:
        os.close(space)
    assert report.code == 0
    assert (report.status["state"], report.remedy["state"]) == ("missing", "ip link set lo up")
    assert "generic" in report.detail["native XDP"]
    assert report.detail["ingress auto"] == "TC: loopback is a virtual interface"


def test_somebody_elses_program_is_named(veth: End) -> None:
    program = features.load_passing(Hook.XDP)
    theirs = attach(Hook.XDP, program, interface.find(veth.ifname))
    try:
        report = examine(veth.ifname)
    finally:
        theirs.close()
        os.close(program)
    assert report.status["tc ingress order"] == "note"
    found = re.search(
        r"XDP program 'doctor' id (\d+) runs first", report.detail["tc ingress order"]
    )
    assert found
    assert (
        report.detail["ingress auto"]
        == f"TC: XDP program 'doctor' id {found[1]} is on {veth.ifname}"
    )


@pytest.mark.slow
def test_the_order_of_programs_is_told(veth: End) -> None:
    """Before a run: who will come behind it; during a run: who came before it."""
    where = interface.find(veth.ifname)
    theirs = features.load_passing(Hook.TC_EGRESS)
    with closing(Chain(Hook.TC_EGRESS.prog_type)) as chain, ExitStack() as stack:
        stack.callback(os.close, theirs)
        stack.callback(attach(Hook.TC_EGRESS, theirs, where).close)
        report = examine(veth.ifname)
        assert report.status["tc egress order"] == "ok"
        assert re.fullmatch(
            r"TCX program 'doctor' id \d+ comes behind probedeck's",
            report.detail["tc egress order"],
        )
        ours = attach(Hook.TC_EGRESS, chain.fd, where)
        assert "behind probedeck's" in examine(veth.ifname).detail["tc egress order"]
        stack.callback(ours.close)
        later = features.load_passing(Hook.TC_EGRESS)
        stack.callback(os.close, later)
        stack.callback(attach(Hook.TC_EGRESS, later, where).close)
        report = examine(veth.ifname)
        assert report.status["tc egress order"] == "note"
        assert (
            "runs first: packets dropped or redirected there are not counted"
            in report.detail["tc egress order"]
        )


def test_an_interface_without_ethernet() -> None:
    space = netns.fresh()
    with netns.inside(space), open("/dev/net/tun", "r+b", buffering=0) as tun:
        fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
        report = examine("tun0")
    os.close(space)
    assert "TC" in report.detail["framing"]


def test_offloads_in_the_way(monkeypatch: pytest.MonkeyPatch, veth: End) -> None:
    monkeypatch.setattr(features, "receive_offloads", lambda _: {"rx-gro-hw": True})
    assert examine(veth.ifname).remedy["receive offloads"] == (
        f"ethtool -K {veth.ifname} rx-gro-hw off"
    )
    monkeypatch.setattr(features, "receive_offloads", lambda _: {"rx-gro-hw": False})
    assert "at TC" in examine(veth.ifname).remedy["receive offloads"]


@pytest.mark.parametrize(("offloads", "status"), [({}, "note"), ({"rx-lro": True}, "ok")])
def test_a_network_card_that_native_xdp_interrupts(
    monkeypatch: pytest.MonkeyPatch, veth: End, offloads: dict[str, bool], status: str
) -> None:
    monkeypatch.setattr(ingress, "_virtual_kind", lambda _: "")
    monkeypatch.setattr(features, "driver", lambda _: "ixgbe")
    monkeypatch.setattr(features, "receive_offloads", lambda _: offloads)
    report = examine(veth.ifname)
    assert report.status["XDP interrupts"] == status
    assert "ixgbe may make its rings anew" in report.detail["XDP interrupts"]
    if status == "note":
        assert report.detail["ingress auto"] == "native XDP: ixgbe runs XDP itself"
        assert "--ingress tc" in report.remedy["XDP interrupts"]
    else:
        assert report.detail["ingress auto"].startswith("TC: rx-lro on")
