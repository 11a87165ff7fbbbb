"""One network interface."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from app.doctor.check import HostCheck, Status
from bpf import features
from bpf.attach import ingress, order
from bpf.attach.hook import Hook
from bpf.attach.interface import Interface


def device(interface: Interface) -> Iterator[HostCheck]:
    """What watching this interface will be like; nothing is attached to it."""
    name = interface.name
    if interface.is_up():
        yield HostCheck("state", Status.OK, "up")
    else:
        yield HostCheck("state", Status.MISSING, "down", f"ip link set {name} up")
    yield HostCheck("driver", Status.OK, features.driver(name) or "none")
    if not interface.ethernet:
        yield HostCheck("framing", Status.NOTE, "no Ethernet: ingress is watched by TC, not XDP")
    yield _native_xdp(interface)
    yield from _auto(interface)
    for hook in (Hook.TC_INGRESS, Hook.TC_EGRESS):
        yield _order(hook, interface)
    yield _offloads(name)


def _native_xdp(interface: Interface) -> HostCheck:
    match features.native_xdp(interface.index):
        case True:
            return HostCheck("native XDP", Status.OK, "the driver has it")
        case False:
            detail = "not in this driver; --ingress xdp would be generic"
            return HostCheck("native XDP", Status.OK, detail)
        case None:
            return HostCheck("native XDP", Status.NOTE, "unknown: this kernel does not tell")


def _auto(interface: Interface) -> Iterator[HostCheck]:
    """Where `--ingress auto` counts incoming packets, and whether XDP interrupts traffic."""
    choice = ingress.choose(interface)
    native = choice.hook is Hook.XDP
    where = "native XDP" if native else "TC"
    yield HostCheck("ingress auto", Status.OK, f"{where}: {choice.reason}")
    if interruption := ingress.interruption(interface):
        if native:
            yield HostCheck("XDP interrupts", Status.NOTE, interruption, "--ingress tc does not")
        else:
            yield HostCheck("XDP interrupts", Status.OK, f"only with --ingress xdp: {interruption}")


def _order(hook: Hook, interface: Interface) -> HostCheck:
    """Programs of others on a hook, and whether they see packets before probedeck's."""
    label = f"{hook.value} order"
    found = order.on_hook(hook, interface.index)
    if not found:
        return HostCheck(label, Status.OK, "no program is there yet")
    ours = [program for program in found if program.name == order.OWN_NAME]
    if ours:
        first = [str(each) for each in takewhile(lambda each: each not in ours, found)]
        lost = "packets dropped or redirected there are not counted"
    else:
        # Ours will be the first on TC; XDP comes before TC.
        first = [str(each) for each in found if each.kind == "XDP"]
        lost = "probedeck counts at TC, behind it"
    if first:
        return HostCheck(label, Status.NOTE, f"{' and '.join(first)} runs first: {lost}")
    count = len(found) - len(ours)
    others = ", ".join(str(each) for each in found if each not in ours) or "no other program"
    verb = "come" if count > 1 else "comes"
    return HostCheck(label, Status.OK, f"{others} {verb} behind probedeck's" if count else others)


def _offloads(name: str) -> HostCheck:
    """virtio-net refuses native XDP while the host merges segments for it (LRO, GRO_HW)."""
    label = "receive offloads"
    try:
        on = features.receive_offloads(name)
    except OSError:
        return HostCheck(label, Status.OK, "none known")
    if not on:
        return HostCheck(label, Status.OK, "none in the way of XDP")
    can_change = [offload for offload, changeable in on.items() if changeable]
    return HostCheck(
        label,
        Status.NOTE,
        f"{' and '.join(on)} on: the driver may refuse native XDP",
        f"ethtool -K {name} {' '.join(f'{offload} off' for offload in can_change)}"
        if can_change
        else "--ingress auto counts at TC then",
    )
