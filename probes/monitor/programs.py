"""The monitor's programs and their maps."""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from socket import IPPROTO_UDP

import numpy as np

from bpf import features
from bpf.arrays import Array, Rows
from bpf.attach.interface import AnyHook, Interface
from bpf.compiler import Compiled
from bpf.machine import possible_cpus
from bpf.programs.program import Program
from bpf.syscall import prog_array_clear, prog_array_set
from probes.hooks.interface_hook import macros_of as hook_macros
from probes.life import Bundle
from probes.losses import read_losses
from probes.monitor.options import Input, MonitorOptions, Receiver
from probes.monitor.records import METRIC, METRIC_COLUMNS
from probes.monitor.selection import SELECTIONS, TABLES
from probes.program.metrics import open_map
from probes.snapshot import Loss, LossReason
from probes.tunnels import Tunnels

FUNCTION, ROUTE, FINISH = PROGRAMS = ("monitor", "route", "finish")
COUNT_RECORDS = "count_records"
"""A further program if the input is telemetry."""
SOURCE = Path(__file__).with_name("monitor.c")
GIVEN = ("selections", "applications", "given")
"""Maps that applications share with the monitor (bpf/include/application.h)."""
SHARED = (*GIVEN, "controls", "chosen", "receivers", "router", "datagrams", *TABLES)
"""Maps that all programs and generations share."""
PRIVATE = ("sketches", "losses", "counter")
"""Maps that each half has for itself."""
RECORDS = 45
"""Most telemetry records of one datagram: they fit into 1500 bytes."""
APPLICATIONS = 16

CONTROL = np.dtype([("applications", "u4", (SELECTIONS,))])
"""`struct control` of monitor.c."""
_FACTORS = 7
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PROTOCOLS = {"tcp": [6], "udp": [17], "icmp": [1, 58]}
"""IANA's protocol numbers by the metrics' names."""
_NO_PROTOCOL = 256
_ARP = ("arp_request_packets", "arp_reply_packets")
"""Metrics of the numbers after _NO_PROTOCOL."""


def macros_of(options: MonitorOptions, interface: Interface, hook: AnyHook) -> dict[str, int | str]:
    """Macros for applications and the monitor itself."""
    return {
        **hook_macros(interface, hook),
        "TUNNELS": int(options.tunnels is not Tunnels.OUTER),
        "RECORDS": RECORDS if options.input is Input.TELEMETRY else 1,
        **{f"HASH_{n}": f"{factor:#x}ULL" for n, factor in enumerate(hash_factors(options.seed))},
    }


def own_macros(options: MonitorOptions) -> dict[str, int | str]:
    """Macros for the monitor only."""
    ends = options.input is not Input.REGULAR
    return {
        "TELEMETRY": int(options.input is Input.TELEMETRY),
        "DROPS_MEASURED": int(ends),
        "DROPS_OTHERS": int(options.drop_others),
        # The compiler's own maps: `SketchHalf` and the probe make larger ones.
        "CPUS": 1,
        "DATAGRAMS": 1,
        "REGISTERS": 1 << options.bits,
    }


def hash_factors(seed: str) -> tuple[int, ...]:
    """Odd 64-bit factors of the hash, the same for the same seed; empty: this boot's own."""
    text = seed or _BOOT_ID.read_text(encoding="ascii").strip()
    digest = hashlib.shake_256(f"probedeck {text}".encode()).digest(8 * _FACTORS)
    return tuple(int.from_bytes(digest[n : n + 8], "little") | 1 for n in range(0, len(digest), 8))


def seed_id(seed: str) -> str:
    """An id of the seed that does not reveal it; equal ids let sketches merge."""
    factors = np.array(hash_factors(seed), "u8").tobytes()
    return hashlib.sha256(factors).hexdigest()[:16]


def receiver_key(receiver: Receiver) -> bytes:
    """The `struct flow_key` of datagrams to a receiver."""
    source, destination = map(ipaddress.ip_address, (receiver.source, receiver.destination))
    ports = (receiver.source_port.to_bytes(2, "big"), receiver.destination_port.to_bytes(2, "big"))
    transport = b"".join((*ports, bytes([IPPROTO_UDP, source.version]))).ljust(8, b"\0")
    return source.packed.ljust(16, b"\0") + destination.packed.ljust(16, b"\0") + transport


class SketchHalf:
    """One of the two `monitor` programs, and user space's view of its counters."""

    def __init__(self, compiled: Compiled, shared: Mapping[str, int], next_fd: int) -> None:
        # Possible CPUs, not only the online ones: this program has no ring for late ones.
        entries = {"sketches": possible_cpus()}
        self.program = Program(compiled, FUNCTION, shared=shared, next_fd=next_fd, entries=entries)
        self._counter: Program | None = None
        if COUNT_RECORDS in compiled.programs:
            every = {name: self.program.map_fd(name) for name in compiled.maps}
            self._counter = Program(compiled, COUNT_RECORDS, shared=every, next_fd=next_fd)
            prog_array_set(every["counter"], 0, self._counter.fd)
        self._maps = {
            name: open_map(
                compiled.maps[name], self.program.map_fd(name), entries=entries.get(name)
            )
            for name in ("sketches", "losses")
        }
        self.sketches = self._maps["sketches"].view()
        """The kernel's own `struct sketch` of all CPUs."""

    def read(self) -> tuple[Rows[METRIC], Array]:
        """Return a row of dtype METRIC, shape (), without flows, and the registers u4 (CPUs,
        2**bits).

        Exact only after the last CPU has left the program.
        """
        row = np.zeros((), METRIC)
        tallies = self.sketches["tallies"]
        for name in ("packets", "bytes"):
            counts = tallies[name].sum(axis=0)
            row[name] = counts.sum()
            for each, protocols in _PROTOCOLS.items():
                row[f"{each}_{name}"] = counts[protocols].sum()
        row["protocols"] = np.count_nonzero(tallies["packets"][:, :_NO_PROTOCOL].sum(axis=0))
        flags = self.sketches["flags"].sum(axis=0)
        for number, name in enumerate(_ARP, _NO_PROTOCOL + 1):
            row[name] = tallies["packets"][:, number].sum()
        for one in METRIC_COLUMNS:
            if one.flags is not None:
                mask, wanted = one.flags
                row[one.name] = flags[np.arange(len(flags)) & mask == wanted].sum()
        return row, self.sketches["registers"]

    def losses(self) -> dict[LossReason, Loss]:
        """Losses since the last call."""
        return read_losses(self._maps["losses"])

    def clear(self) -> None:
        for name in ("tallies", "flags", "registers"):
            self.sketches[name] = 0

    def close(self) -> None:
        del self.sketches
        for owned in self._maps.values():
            owned.close()
        if self._counter:
            prog_array_clear(self.program.map_fd("counter"), 0)
            self._counter.close()
        self.program.close()


class MonitorPrograms:
    """One loaded source: two halves with `monitor`, and the programs behind them."""

    def __init__(
        self, compiled: Compiled, shared: Sequence[Mapping[str, int]], next_fd: int
    ) -> None:
        """Load programs that no packet reaches yet, or raise and load none. `shared` has the shared
        maps of each half."""
        self.active = 0
        self.halves = Bundle[SketchHalf]()
        self.steps = Bundle[Program]()
        """`route`, and `finish`: the program behind the last application."""
        try:
            for maps in shared:
                # A count of a user must not go to each half in turn.
                common = {
                    name: self.halves[0].program.map_fd(name)
                    for name in compiled.maps.keys() - {*maps, *PRIVATE}
                    if self.halves
                }
                self.halves.append(SketchHalf(compiled, {**maps, **common}, next_fd))
            # The steps share the maps of `monitor`: they need no counters of their own.
            every = {name: self.halves[0].program.map_fd(name) for name in compiled.maps}
            for name in (ROUTE, FINISH):
                self.steps.append(Program(compiled, name, shared=every, next_fd=next_fd))
        except BaseException:
            self.close()
            raise

    @property
    def half(self) -> SketchHalf:
        """The half that packets reach."""
        return self.halves[self.active]

    def close(self) -> None:
        self.halves.close()
        self.steps.close()


def ask_for_offload(interface: Interface) -> str:
    """Ask the driver to run the monitor on the NIC. Returns its answer in one line."""
    try:
        features.ask_offload(interface.index)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        return f"{interface.name}: its driver takes no programs ({why}); all runs on the host"
    return f"{interface.name}: its driver takes programs; this release still runs all on the host"
