"""One network interface."""

from __future__ import annotations

import os
from collections.abc import Iterator

from app.doctor.check import Check, Status
from bpf import features, netlink
from bpf.interface import Interface
from bpf.syscall import prog_fd_by_id, prog_info


def device(interface: Interface) -> Iterator[Check]:
    """What watching this interface will be like; nothing is attached to it."""
    name = interface.name
    if interface.is_up():
        yield Check("state", Status.OK, "up")
    else:
        yield Check("state", Status.MISSING, "down", f"ip link set {name} up")
    driver = features.driver(name)
    yield Check("driver", Status.OK, driver or "none")
    if not interface.ethernet:
        yield Check("framing", Status.NOTE, "no Ethernet: ingress is watched by TC, not XDP")
    yield _native_xdp(interface)
    yield _program(interface)
    if driver == "veth":
        yield Check(
            "veth",
            Status.NOTE,
            "native XDP takes the peer's TSO away: slower TCP",
            "--ingress tc watches without",
        )
    yield _offloads(name)


def _native_xdp(interface: Interface) -> Check:
    match features.native_xdp(interface.index):
        case True:
            return Check("native XDP", Status.OK, "the driver has it")
        case False:
            return Check("native XDP", Status.NOTE, "not in this driver; generic XDP is used")
        case None:
            return Check("native XDP", Status.NOTE, "unknown: this kernel does not tell")


def _program(interface: Interface) -> Check:
    name = "XDP program"
    prog_id = netlink.xdp_program(interface.index)
    if not prog_id:
        return Check(name, Status.OK, "none there yet")
    who = f"id {prog_id}"
    try:
        fd = prog_fd_by_id(prog_id)
    except OSError:
        pass
    else:
        who = f"{prog_info(fd).name or '(no name)'!r} {who}"
        os.close(fd)
    return Check(name, Status.NOTE, f"{who} is there and is left alone", "watch with --ingress tc")


def _offloads(name: str) -> Check:
    """virtio-net refuses native XDP while the host merges segments for it (LRO, GRO_HW)."""
    label = "receive offloads"
    try:
        on = features.receive_offloads(name)
    except OSError:
        return Check(label, Status.OK, "none known")
    if not on:
        return Check(label, Status.OK, "none in the way of XDP")
    can_change = [offload for offload, changeable in on.items() if changeable]
    return Check(
        label,
        Status.NOTE,
        f"{' and '.join(on)} on: the driver may refuse native XDP",
        f"ethtool -K {name} {' '.join(f'{offload} off' for offload in can_change)}"
        if can_change
        else "generic XDP is used then; or watch with --ingress tc",
    )
