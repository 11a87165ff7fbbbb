"""Checks of a network interface."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from bpf import features
from bpf.attach import ingress, order
from bpf.attach.group import InterfaceGroup
from bpf.attach.interface import Hook, Interface
from bpf.requirements import HostCheck, Status, missing, note, ok


def device(interface: Interface) -> Iterator[HostCheck]:
    """Check an interface, or several, without attaching a program."""
    if isinstance(interface, InterfaceGroup):
        yield from _several(interface)
        return
    name = interface.name
    if interface.is_up():
        yield ok("state", "up")
    else:
        yield missing("state", "down", f"ip link set {name} up")
    yield ok("driver", features.driver(name) or "none")
    if not interface.ethernet:
        yield note("framing", "no Ethernet: ingress is watched by TC, not XDP")
    yield _native_xdp(interface)
    choice = ingress.choose(interface)
    native = choice.hook is Hook.XDP
    yield ok("ingress auto", f"{'native XDP' if native else 'TC'}: {choice.reason}")
    if interruption := ingress.interruption(interface):
        if native:
            yield note("XDP interrupts", interruption, "--ingress tc does not")
        else:
            yield ok("XDP interrupts", f"only with --ingress xdp: {interruption}")
    for hook in (Hook.TC_INGRESS, Hook.TC_EGRESS):
        yield _order(hook, interface)
    yield _offloads(name)


def _several(group: InterfaceGroup) -> Iterator[HostCheck]:
    """Yield which interfaces they are, and the programs that run before ours."""
    members = [member.interface for member in group.members.values()]
    names = ", ".join(each.name for each in members)
    yield ok("watched", f"{len(members)}: {names}") if members else note("watched", "none yet")
    for each in members:
        for check in (_order(hook, each) for hook in (Hook.TC_INGRESS, Hook.TC_EGRESS)):
            if check.status is not Status.OK:
                yield replace(check, detail=f"on {each.name}: {check.detail}")


def _native_xdp(interface: Interface) -> HostCheck:
    match features.native_xdp(interface.index):
        case True:
            return ok("native XDP", "the driver has it")
        case False:
            return ok("native XDP", "not in this driver; --ingress xdp would be generic")
        case None:
            return note("native XDP", "unknown: this kernel does not tell")


def _order(hook: Hook, interface: Interface) -> HostCheck:
    label = f"{hook.value} order"
    found = order.on_hook(hook, interface.index)
    if not found:
        return ok(label, "no program is there yet")
    ours = [program for program in found if program.name == order.OWN_NAME]
    if ours:
        first = [str(each) for each in takewhile(lambda each: each not in ours, found)]
        lost = "packets dropped or redirected there are not counted"
    else:
        # Ours will be the first on TC; XDP comes before TC.
        first = [str(each) for each in found if each.kind == "XDP"]
        lost = "probedeck counts at TC, behind it"
    if first:
        return note(label, f"{' and '.join(first)} runs first: {lost}")
    count = len(found) - len(ours)
    others = ", ".join(str(each) for each in found if each not in ours) or "no other program"
    verb = "come" if count > 1 else "comes"
    return ok(label, f"{others} {verb} behind probedeck's" if count else others)


def _offloads(name: str) -> HostCheck:
    """virtio-net refuses native XDP while the host merges segments for it (LRO, GRO_HW)."""
    label = "receive offloads"
    try:
        on = features.receive_offloads(name)
    except OSError:
        return ok(label, "none known")
    if not on:
        return ok(label, "none in the way of XDP")
    can_change = [offload for offload, changeable in on.items() if changeable]
    settings = " ".join(f"{offload} off" for offload in can_change)
    remedy = f"ethtool -K {name} {settings}" if settings else "--ingress auto counts at TC then"
    return note(label, f"{' and '.join(on)} on: the driver may refuse native XDP", remedy)
