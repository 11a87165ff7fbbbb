"""The traced destinations: the kernel's state of each, and user space's."""

from __future__ import annotations

import ipaddress
import secrets
import struct
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from socket import IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, IPPROTO_UDP

import numpy as np

from bpf.arrays import Array, Rows
from bpf.errors import UsageError
from bpf.programs import grace
from bpf.syscall import map_delete, map_update
from probes.path.options import PathOptions, TracedFlow
from probes.path.planning.extent import HopFinder, PathExtent
from probes.path.probing_plan import HopSchedule, initial_ttl
from probes.path.records import HOP
from probes.path.slots import Destination, InFlight
from probes.path.traced import NO_ROUTER, Traced, Unprobed

FLOWS = 4
"""Flows of one destination that are traced, unless all are."""

TARGET = np.dtype([
    ("interval_ns", "u8"), ("credit_ns", "u8"), ("only", "u8", (FLOWS,)), ("live", "u4"),
    ("asked", "u4"), ("ready", "u4"), ("whole", "u4"), ("own", "u8"),
    ("unused", "u8", (7,)), ("next_ns", "u8"), ("sequence", "u8"), ("packets", "u8"),
    ("matched", "u8"), ("unmatched", "u8"), ("round", "u4"), ("done", "u4"), ("ttl", "u4"),
    ("remarked", "u4"), ("escaped", "u4"), ("mtu", "u4"), ("sent_bytes", "u8"),
    ("matched_bytes", "u8"), ("heard_ns", "i8"), ("foreign", "u8"), ("foreign_ns", "i8"),
    ("mtu_ns", "i8"), ("mtu_reporter", "u1", (16,)), ("unprobed", "u8", (8,)),
    ("sent", "u8", (32,)),
])  # fmt: skip
"""`struct target` of path.h: 576 bytes."""

_COUNTERS = ("packets", "sent", "matched", "sent_bytes", "matched_bytes", "unmatched", "foreign",
             "unprobed")  # fmt: skip
"""Fields of TARGET that only grow."""
_FRESH = ("whole", "own", "next_ns", "round", "done", "asked", "ttl",
          "remarked", "escaped", "mtu", "heard_ns", "foreign_ns", "mtu_ns")  # fmt: skip
"""Fields of TARGET that begin at 0 for each destination."""

SHARED = np.dtype([("clones", "u8"), ("unused", "u8", (7,)), ("watched", "u8", (64,))])
"""`struct shared` of path.h: 576 bytes."""

_FIRST_BITS = 31
"""Of the first sequence number: a row has 32."""

_HASH_FACTOR = 0x9E3779B97F4A7C15
"""Of `may_be_traced` in path.h."""


def destination_of(text: str) -> Destination:
    """A destination from its address as text; IPv4 within IPv6 (::ffff:0:0/96) is IPv4.

    Raises UsageError if the text is no address or no path leads to it.
    """
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise UsageError(f"{text!r} is no address") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    if reason := _reason_against(address):
        raise UsageError(f"cannot trace {text}: {reason}")
    return Destination(address.packed.ljust(16, b"\0"), address.version)


def _reason_against(address: IPv4Address | IPv6Address) -> str:
    """The reason why no path leads there; empty if one may."""
    if isinstance(address, IPv6Address) and (address.is_link_local or address.scope_id):
        return "it is on the link itself, behind no router"
    if address.is_unspecified:
        return "it is nobody's"
    if address.is_loopback:
        return "it is this host"
    if address.is_multicast or address == IPv4Address("255.255.255.255"):
        return "it is not of one host"
    return ""


def check_flow(flow: TracedFlow, version: int) -> None:
    """Raises UsageError if probes cannot imitate the flow."""
    echo = IPPROTO_ICMP if version == 4 else IPPROTO_ICMPV6
    if flow.protocol not in (IPPROTO_TCP, IPPROTO_UDP, echo):
        raise UsageError(
            f"flows of protocol {flow.protocol} over IPv{version} cannot be traced",
            hint="TCP, UDP and ICMP echo can",
        )
    if flow.protocol == echo and any(flow[1:]):
        raise UsageError("an ICMP echo has no ports", hint="both are 0")
    if not all(0 <= port < 1 << 16 for port in flow[1:]):
        raise UsageError(f"ports {flow.source_port} and {flow.destination_port} are not 16 bits")


class TracedDestination:
    """One destination: its flows, and its state in the kernel."""

    def __init__(
        self,
        destination: Destination,
        index: int,
        table: Array,
        slots: Array,
        options: PathOptions,
        finder: HopFinder,
    ) -> None:
        """`table`: dtype TARGET (1,), its own; `slots`: dtype SLOT (n,)."""
        self.destination = destination
        self.index = index
        self.every = False
        """Whether all flows are traced, not only `flows`."""
        self.flows: dict[TracedFlow, None] = {}
        self._kernel = table
        self._burst = options.burst
        self._before = table[0].copy()
        """The counters when tracing began."""
        self.flight = InFlight(destination, slots, table)
        self.extent = PathExtent(destination, finder, options)
        self._told: set[str] = set()
        for name in _FRESH:
            table[name] = 0
        self._follow(self.extent.plan.schedule)

    @property
    def sequence(self) -> int:
        """Number of the next probe."""
        return int(self._kernel["sequence"][0])

    def start(self) -> None:
        self._kernel["ready"] = 1

    @property
    def remarked(self) -> int:
        """Probes dropped so far because another program changed their clone's mark."""
        return int(self._kernel["remarked"][0])

    @property
    def foreign(self) -> int:
        """Probes of other tracers since tracing began."""
        return int(self._kernel["foreign"][0] - self._before["foreign"])

    @property
    def escaped(self) -> bool:
        """Whether the kernel has stopped sending probes because another program took a clone."""
        return bool(self._kernel["escaped"][0])

    def stop(self) -> None:
        self._kernel["ready"] = 0

    def choose(self) -> None:
        """Tell the kernel which flows to trace."""
        only = [] if self.every else [_transport(flow) for flow in self.flows]
        # If the first is 0 all flows match: a flow moves up before its old place is freed.
        self._kernel["only"][0, : len(only)] = only
        self._kernel["only"][0, len(only) :] = 0

    @property
    def mtu_report(self) -> tuple[int, bytes] | None:
        """The last report that a packet was too big: MTU and router; None without a report."""
        mtu = int(self._kernel["mtu"][0])
        return (mtu, self._kernel["mtu_reporter"][0].tobytes()) if mtu else None

    def application_packets(self) -> int:
        """Return the number of packets that applications sent so far, and that can be probes."""
        return int(self._kernel["packets"][0]) - int(self._kernel["unprobed"].sum())

    def take_own(self, protocol: int, source_port: int, destination_port: int) -> None:
        """Tell the kernel which flow is the tracer's own; of ICMP the source port is the
        identifier."""
        own = TracedFlow(protocol, source_port, destination_port)
        self._kernel["own"] = _transport(own)

    def collect(
        self, now_ns: int, timeout_ns: int, timed: Rows[HOP], *, final: bool = False
    ) -> Array:
        """Rows of dtype HOP, as InFlight.collect; losses beyond the path are BEYOND_PATH.

        `timed`: rows of dtype HOP of new round trips to all destinations.
        """
        rows = self.flight.collect(now_ns, timeout_ns, final=final)
        address = np.frombuffer(self.destination.address, "u1")
        timed = timed[(timed["destination"] == address).all(axis=1)]
        heard_ns = int(self._kernel["heard_ns"][0])
        self.extent.judge(rows, self.flight.overdue, timed, heard_ns, now_ns)
        return rows

    def decide(self, rows: Rows[HOP], now_ns: int) -> None:
        """Update the probed hops after new rows of dtype HOP."""
        sent = self._kernel["sent"][0] - self._before["sent"]
        ttl, heard_ns = int(self._kernel["ttl"][0]), int(self._kernel["heard_ns"][0])
        self._follow(self.extent.decide(rows, sent, ttl, heard_ns, now_ns))

    def summary(self) -> Traced:
        since = {name: self._kernel[name][0] - self._before[name] for name in _COUNTERS}
        # Each router on the way back takes one away from the TTL.
        ttl = int(self._kernel["ttl"][0])
        near = not self.extent.plan.length and 0 < ttl == initial_ttl(ttl)
        return Traced(
            self.destination.text,
            () if self.every else tuple(self.flows),
            self.extent.plan.length,
            self.extent.plan.live,
            self.extent.plan.silent,
            int(since["packets"]),
            int(since["sent"].sum()),
            int(since["matched"]),
            int(since["sent_bytes"]),
            int(since["matched_bytes"]),
            int(since["unmatched"]),
            int(since["foreign"]),
            self.notes() or ((NO_ROUTER,) if near else ()),
            stateful_hop=self.extent.guard.stateful_hop,
            finder=self.extent.hidden.asked,
            end=self.extent.hidden.end,
            heard=bool(self._kernel["heard_ns"][0]),
            unprobed={
                reason.value: int(count)
                for reason, count in zip(Unprobed, since["unprobed"], strict=False)
                if count
            },
        )

    def notes(self) -> tuple[str, ...]:
        """Findings about the whole path, a sentence each."""
        return tuple(filter(None, (self.extent.hidden.note, *self.extent.notes())))

    def new_notes(self) -> list[str]:
        """The note about hidden hops, unless it was returned before."""
        new = [note for note in (self.extent.hidden.note,) if note and note not in self._told]
        self._told.update(new)
        return new

    def _follow(self, plan: HopSchedule) -> None:
        kernel = self._kernel
        kernel["interval_ns"] = plan.interval_ns
        kernel["credit_ns"] = (self._burst - 1) * plan.interval_ns
        kernel["live"] = plan.live
        # A pending try stays pending: to flip its bit again would cancel it.
        waiting = int(kernel["asked"][0]) ^ int(kernel["done"][0])
        kernel["asked"] = int(kernel["asked"][0]) ^ (plan.once & ~waiting)
        kernel["whole"] = self.extent.guard.whole


class TracedDestinations:
    """All traced destinations, in the kernel's tables."""

    def __init__(
        self,
        addresses_fd: int,
        shared: Rows[SHARED],
        table: Rows[TARGET],
        slots: Array,
        options: PathOptions,
        finder: HopFinder,
    ) -> None:
        """`addresses_fd` and `finder` stay the caller's; `shared`: dtype SHARED (1,), `table`:
        dtype TARGET (n,), `slots`: dtype SLOT (n times as many,), the kernel's own memory."""
        self._addresses_fd = addresses_fd
        self._watched = shared["watched"][0]
        self._options = options
        self._finder = finder
        self._table = table
        # Random: another tracer's probes of the same flow should not have the same numbers.
        table["sequence"] = [secrets.randbits(_FIRST_BITS) for _ in table]
        self._slots = slots.reshape(len(table), -1)
        self.slots_per_target = self._slots.shape[1]
        self._free = list(range(len(self._table)))
        self._targets: dict[bytes, TracedDestination] = {}

    def close(self) -> None:
        """Forget every destination, and release the kernel's memory."""
        self._targets.clear()
        self._table, self._slots = self._table[:0].copy(), self._slots[:0].copy()
        self._watched = self._watched[:0].copy()

    def __iter__(self) -> Iterator[TracedDestination]:
        return iter(tuple(self._targets.values()))

    def __len__(self) -> int:
        return len(self._targets)

    def take_finder_answers(self) -> None:
        for answer in self._finder.answers():
            if target := self._targets.get(answer.destination.address):
                target.extent.hear(answer)

    def new_notes(self) -> list[tuple[str, str]]:
        """Severity and text of each new finding about a whole path."""
        return [
            ("warning", f"{target.destination.text}: {note}")
            for target in self
            for note in target.new_notes()
        ]

    def add(self, destination: Destination, flow: TracedFlow | None) -> TracedDestination:
        """Trace a destination, or one more of its flows. Raises UsageError if the tables are
        full."""
        target = self._targets.get(destination.address)
        if flow is not None:
            check_flow(flow, destination.version)
            if target and not (target.every or flow in target.flows or len(target.flows) < FLOWS):
                raise UsageError(
                    f"at most {FLOWS} flows to {destination.text} are traced at a time",
                    hint="untrace one, or trace every flow",
                )
        if target is None:
            if not self._free:
                raise UsageError(
                    f"at most {len(self._table)} destinations are traced at a time",
                    hint="untrace one, or name more of them at the start",
                )
            index = self._free[0]
            table, slots = self._table[index : index + 1], self._slots[index]
            target = TracedDestination(
                destination, index, table, slots, self._options, self._finder
            )
            # First: the programs look a packet up only if the bit of its address is set.
            self._watched |= _watched([destination])
            map_update(self._addresses_fd, _key(destination), index.to_bytes(4, "little"))
            self._free.remove(index)
            self._targets[destination.address] = target
        if flow is None:
            target.every = True
        else:
            target.flows[flow] = None
        target.choose()
        target.start()
        return target

    def remove(self, destination: Destination, flow: TracedFlow | None) -> TracedDestination | None:
        """Stop tracing one flow, or all of them.

        Returns the destination when its last flow ends: its last probes are to be reported now.
        Raises UsageError if it is not traced.
        """
        target = self._targets.get(destination.address)
        if target is None or (flow is not None and flow not in target.flows):
            what = destination.text if target is None else f"this flow to {destination.text}"
            raise UsageError(f"{what} is not traced")
        if flow is not None:
            del target.flows[flow]
            if target.flows or target.every:
                target.choose()
                return None
        target.stop()
        map_delete(self._addresses_fd, _key(destination))
        # After this no CPU writes a probe to the destination.
        grace.wait()
        del self._targets[destination.address]
        self._watched[:] = _watched(target.destination for target in self)
        self._free.append(target.index)
        return target


def _watched(destinations: Iterable[Destination]) -> Array:
    """Words u8 (64,) of `struct shared` with these destinations' bits set."""
    words = np.zeros(64, "u8")
    for destination in destinations:
        low, high = struct.unpack("<QQ", _key(destination))
        bit = ((low ^ high) * _HASH_FACTOR & 2**64 - 1) >> 52
        words[bit >> 6] |= np.uint64(1 << (bit & 63))
    return words


def _transport(flow: TracedFlow) -> int:
    """A flow as in `only` of path.h."""
    ports = flow.source_port.to_bytes(2, "big") + flow.destination_port.to_bytes(2, "big")
    return flow.protocol << 32 | int.from_bytes(ports, "little")


def _key(destination: Destination) -> bytes:
    """A key of `addresses`: an IPv6 address, or an IPv4-mapped one."""
    if destination.version == 6:
        return destination.address
    return bytes(10) + b"\xff\xff" + destination.address[:4]
