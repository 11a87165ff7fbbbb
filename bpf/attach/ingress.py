"""The choice of the hook for incoming packets, for every probe (`--ingress auto`).

Native XDP is the cheapest hook, if a network card's driver runs it. On other interfaces it costs
more than it saves: a veth stops taking its peer's large segments (30 to 5 Gbit/s), virtio-net
turns receive offloads off, and the kernel's generic XDP copies large segments, counts each as one
packet, and turns GRO off for the whole interface. TC costs nothing there.

At XDP only a program that is bound to one device can ask its driver for a tag that the card took
off, and the kernel lets no other program call it: so at most the first of a chain. TC sees the tag.
"""

from __future__ import annotations

from dataclasses import dataclass

from bpf import features
from bpf.attach import order, rtnetlink
from bpf.attach.interface import Hook, Interface

_WITHOUT_OFFLOADS = {
    "veth": "native XDP takes its peer's TSO away",
    "virtio_net": "native XDP turns its receive offloads off",
    "hv_netvsc": "native XDP turns its receive offloads off",
    "xen-netfront": "native XDP turns its receive offloads off",
}
"""Drivers that pay for native XDP with TSO or GRO."""


@dataclass(frozen=True, slots=True)
class HookChoice:
    """A hook for incoming packets, and the reason for it."""

    hook: Hook
    """XDP or TC_INGRESS."""
    reason: str = ""
    """Empty for a hook that the operator asked for."""
    auto: bool = False
    """Whether TC may take the place of a native XDP that the driver refuses."""


def choose(interface: Interface) -> HookChoice:
    """Return the best hook for incoming packets.

    Raises OSError if the interface does not exist.
    """
    reason = _against_xdp(interface)
    if reason:
        return HookChoice(Hook.TC_INGRESS, reason, auto=True)
    return HookChoice(Hook.XDP, f"{features.driver(interface.name)} runs XDP itself", auto=True)


def _against_xdp(interface: Interface) -> str:
    """Return the reason not to try native XDP; empty if there is none."""
    name = interface.name
    if not interface.ethernet:
        return "no Ethernet header"
    if programs := order.xdp_programs(interface.index):
        return f"{programs[-1]} is on {name}"
    driver = features.driver(name)
    if why := _WITHOUT_OFFLOADS.get(driver):
        return f"{driver}: {why}"
    if kind := _virtual_kind(interface):
        return f"{kind} is a virtual interface"
    if features.native_xdp(interface.index) is False:
        return f"{driver or name} has no native XDP"
    if offloads := _offloads(name):
        return f"{' and '.join(offloads)} on, which native XDP turns off"
    if _hides_tags(interface):
        return f"{name} takes the tags of its VLANs off before XDP"
    return ""


def interruption(interface: Interface) -> str:
    """Return a warning if attaching native XDP interrupts the interface's traffic; else "".

    ixgbe, i40e, ice, mlx5, bnxt, ena, virtio-net and others make their rings anew.
    """
    driver = features.driver(interface.name)
    if not driver or _virtual_kind(interface) or features.native_xdp(interface.index) is False:
        return ""
    return (
        f"{driver} may make its rings anew when native XDP comes and goes: "
        "packets are lost for milliseconds to seconds"
    )


def _virtual_kind(interface: Interface) -> str:
    """Return the kind of an interface, such as `bridge`; empty for a network card."""
    if interface.name == "lo":
        return "loopback"
    return rtnetlink.link(interface.index).kind


def _offloads(name: str) -> list[str]:
    """Return the receive offloads that native XDP turns off, or that make drivers refuse."""
    try:
        return list(features.receive_offloads(name))
    except OSError:
        return []


def _hides_tags(interface: Interface) -> bool:
    """Whether packets have tags, of VLANs on the interface, that XDP does not see."""
    try:
        if not features.takes_tags(interface.name):
            return False
    except OSError:
        return False
    return any(each.kind == "vlan" and each.lower == interface.index for each in rtnetlink.links())
