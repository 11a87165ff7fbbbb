"""The probe of drops: packets that the kernel dropped in a window, by flow and reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from bpf.errors import KernelError
from bpf.kernel_types import kernel_types
from probes.config.model import parse
from probes.drops.counted import DROPS_TABLE, PROBE, REASONS_TABLE
from probes.path.marks import PROBE_MAGIC
from probes.program.probe import ProgramProbe
from probes.snapshot import Snapshot

if TYPE_CHECKING:
    from bpf.attach.interface import Interface
    from bpf.compiler import Compiler
    from probes.config.model import ProbeConfig
    from probes.hooks import Hooks

MEMORY = 6 << 20
"""Bytes of kernel memory that the maps take at most."""
_SOURCE = Path(__file__).with_name("drops.c")
_PREFIX = "SKB_DROP_REASON_"
_NOT_SPECIFIED = "not_specified"
_NO_REASON = (1 << 32) - 1
"""A number that no reason has."""
_OFFSETS = {
    "SK_BUFF_DEV": ("sk_buff", "dev"),
    "SK_BUFF_SK": ("sk_buff", "sk"),
    "NET_DEVICE_IFINDEX": ("net_device", "ifindex"),
    "NET_DEVICE_ND_NET": ("net_device", "nd_net"),
    "SOCK_COMMON_SKC_NET": ("sock_common", "skc_net"),
    "NET_NS_INUM": ("net", "ns.inum"),
    "SK_BUFF_END": ("sk_buff", "end"),
    "SKB_SHARED_INFO_GSO_SEGS": ("skb_shared_info", "gso_segs"),
    "SK_BUFF_PROTOCOL": ("sk_buff", "protocol"),
    "SK_BUFF_HEAD": ("sk_buff", "head"),
    "SK_BUFF_NETWORK_HEADER": ("sk_buff", "network_header"),
    "SK_BUFF_LEN": ("sk_buff", "len"),
}
"""Members of the kernel's structures by macro."""


class DropsProbe(ProgramProbe):
    """Counts the packets that the kernel drops, with the kernel's names of the reasons."""

    builtin = True
    warns_of_full_maps = False  # The losses of the table tell it, with numbers.

    def _convert(self, table: Snapshot) -> Snapshot:
        if table.schema is None:
            return table
        path = "key" if table.metric == REASONS_TABLE else "key.reason"
        return replace(table, schema=replace(table.schema, names={path: reason_names()}))


@cache
def reason_names() -> Mapping[int, str]:
    """Return the kernel's names of reasons by number, such as `no_socket` (enum skb_drop_reason).

    Kernels before 5.17 have no reasons. Raises KernelError if the kernel does not describe its
    types.
    """
    types = kernel_types()
    try:
        names = types.enumerators("skb_drop_reason")
    except KernelError:
        return {0: _NOT_SPECIFIED}
    return {number: name.removeprefix(_PREFIX).lower() for number, name in names.items()}


def drops_config(interval: float) -> ProbeConfig:
    """Return the probe's configuration. Raises KernelError if the kernel lacks its types."""
    types = kernel_types()
    numbers = {name: number for number, name in reason_names().items()}
    side = {
        "hook": "raw_tp",
        "tracepoint": "kfree_skb",
        "source": _SOURCE.read_text(encoding="utf-8"),
        "define": {
            "HAS_REASON": int(len(numbers) > 1),
            "UNKNOWN": numbers[_NOT_SPECIFIED],
            "NOT_DROPPED": numbers.get("skb_not_dropped_yet", _NO_REASON),
            "MAGIC": PROBE_MAGIC,
            "CONSUMED": numbers.get("skb_consumed", _NO_REASON),
            **{name: types.offset(*member) for name, member in _OFFSETS.items()},
        },
        "metrics": [
            {
                "name": DROPS_TABLE,
                "map": "drops",
                "help": "packets that the kernel dropped, by flow and reason",
                "snapshot": True,
                "types": {"key.source": "ipv6", "key.destination": "ipv6"},
            },
            {
                "name": REASONS_TABLE,
                "map": "reasons",
                "help": "packets that the kernel dropped, by reason",
                "snapshot": True,
            },
        ],
    }
    return parse({"name": PROBE, "interval": interval, "format": "csv", "event": side}, PROBE)


def prepare(
    compiler: Compiler, hooks: Hooks, _: Interface, interval: float
) -> Callable[[], DropsProbe]:
    """Return a function that makes the probe, with windows of `interval` seconds."""
    return partial(DropsProbe.of, compiler, hooks, drops_config(interval))
