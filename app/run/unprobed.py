"""Why a traced destination has no probes, or fewer than packets."""

from __future__ import annotations

from collections.abc import Iterable

from bpf.attach import group
from bpf.errors import UsageError
from probes.path.traced import Traced, Unprobed

_USUAL = frozenset({Unprobed.OPENING, Unprobed.ICMP})
"""Packets that every trace meets."""


def reasons(traced: Iterable[Traced], interface: str) -> dict[str, tuple[str, ...]]:
    """Return sentences by destination: of each one without probes, and of left-out packets."""
    return {each.destination: tuple(_reasons(each, interface)) for each in traced}


def _reasons(traced: Traced, interface: str) -> Iterable[str]:
    unusual = {name: count for name, count in traced.unprobed.items() if name not in _USUAL}
    left_out = unusual if traced.sent else traced.unprobed
    if not (traced.packets or traced.sent):
        yield f"no probe: {_absence(traced.destination, interface)}"
    elif left_out:
        words = ", ".join(f"{name} ({count})" for name, count in left_out.items())
        start = "" if traced.sent else "no probe: "
        yield f"{start}{sum(left_out.values())} packets could not be probed: {words}"
    elif not traced.sent:
        yield f"no probe: none of {traced.packets} packets could become one"


def _absence(destination: str, interface: str) -> str:
    """Why no packet to an address was seen."""
    from app.resolve import detour  # imports much of path tracing

    try:
        found = detour(destination, group.find(interface))
    except UsageError as error:
        return error.message  # the interface has gone
    return f"it {found}" if found else f"no packet to it left by {interface}"
