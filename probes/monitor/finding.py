"""Findings: summaries of flow rows, with senders, receivers and amounts."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bpf.arrays import Array, Rows
from bpf.quantities import byte_size, duration, percent
from probes.filter import RowTable, parse
from probes.filter.hosts import address_keys, address_text, protocol_name
from probes.flow.filter import WINDOW_FLOWS
from probes.flow.records import FLOW, hash_keys, key_words

_TOP = 3
_NAMED = 0.5
"""Share from which one value stands for all."""
_LISTED = 0.1
"""Share from which a value is listed."""
_MOST = 0.9
"""Share of the flows that a prefix or a protocol has to cover."""
_PREFIX = {4: 8, 6: 16}
"""Shortest common prefix that says something, in bits by IP version."""
_SHORT = 3
"""Packets of a flow of a scan or of a flood of forged sources, at most."""
_SYSTEM_PORTS = 1024
PORTED = (6, 17, 33, 132, 136)
"""Protocols with ports: TCP, UDP, DCCP, SCTP, UDP-Lite."""
_FLAGS = ("FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR")


@dataclass(frozen=True, slots=True)
class TopShare:
    """One of the largest values of a part of the flow key."""

    name: str
    share: float
    """Of the finding's packets, or of its flows; 0 to 1."""


@dataclass(frozen=True, slots=True)
class Distinct:
    """The distinct values of a part of the flow key."""

    count: int = 0
    top: tuple[TopShare, ...] = ()
    """The largest, at most three."""
    network: str = ""
    """Of addresses: the longest prefix with nine tenths of the packets or flows, if there is
    one."""

    @property
    def chief(self) -> str:
        """The value with at least half of the packets or flows; empty without one."""
        return self.top[0].name if self.top and self.top[0].share >= _NAMED else ""

    @property
    def listed(self) -> tuple[TopShare, ...]:
        """The largest values that have at least a tenth each."""
        return tuple(each for each in self.top if each.share >= _LISTED)


_NONE = Distinct()


@dataclass(frozen=True, slots=True)
class Finding:
    """A summary of the incoming flows of a window: senders, receivers and amounts."""

    text: str
    """One line for an operator."""
    filter: str = ""
    """A filter of the flows of the culprit, or of the victim if the sources are many."""
    packets: int = 0
    bytes: int = 0
    flows: int = 0
    seconds: float = 0.0
    by: str = "packets"
    """Unit of the shares: `packets`, or `flows` for scans and forged sources."""
    lost: int = 0
    """Packets of the window that no flow has: counts are lower bounds if there are any."""
    outgoing: bool = False
    """Whether the flows leave."""
    sources: Distinct = _NONE
    destinations: Distinct = _NONE
    source_ports: Distinct = _NONE
    """With the protocol: `udp:123`."""
    ports: Distinct = _NONE
    """Destination ports, with the protocol."""
    protocols: Distinct = _NONE
    flags: Distinct = _NONE
    """Combinations of TCP flags of whole flows: `SYN`, `SYN-ACK`."""


def finding_of(
    rows: Rows[FLOW],
    suspects: Sequence[str] = (),
    *,
    seconds: float,
    lost: int = 0,
    by: str = "",
    note: str = "",
    policy: str = "",
) -> Finding:
    """Summarise the flows of `rows` (dtype FLOW, (n,), of one direction) that pass one of the
    filters.

    `seconds` is the time that the rows cover; `lost` the number of packets that they lack. `by` is
    the unit of shares, `packets` or `flows`; by default flows if most flows have few packets.
    `note` says in a phrase which flows the rows lack. The name of the `policy` chooses the verb.
    Raises TextError for a wrong filter.
    """
    rows = _passing(rows, suspects, seconds)
    if not len(rows):
        text = _with(note, "who is unknown: no flow of this window is selected")
        return Finding(text, seconds=seconds, lost=lost)
    if not by:
        by = "flows" if np.count_nonzero(rows["packets"] <= _SHORT) * 2 > len(rows) else "packets"
    weights = rows["packets"] if by == "packets" else np.ones(len(rows), "u8")
    protocol, every = rows["protocol"], np.ones(len(rows), bool)
    ported, tcp = np.isin(protocol, PORTED), protocol == 6

    def ports(end: str) -> Distinct:
        numbers = protocol.astype("u4") << np.uint32(16) | rows[end]
        return _numbers(
            numbers, weights, ported, lambda n: f"{protocol_name(n >> 16)}:{n & 0xFFFF}"
        )

    finding = Finding(
        text="",
        packets=int(rows["packets"].sum()),
        bytes=int(rows["bytes"].sum()),
        flows=_grouped(hash_keys(key_words(rows)), weights)[0],
        seconds=seconds,
        by=by,
        lost=lost,
        sources=_addresses(rows, "source", weights),
        destinations=_addresses(rows, "destination", weights),
        source_ports=ports("source_port"),
        ports=ports("destination_port"),
        protocols=_numbers(protocol, weights, every, protocol_name),
        flags=_numbers(rows["tcp_flags"], weights, tcp, _flags_name),
    )
    return replace(finding, text=_with(note, _line(finding, policy)), filter=_filter(finding))


def _with(note: str, line: str) -> str:
    return f"{line}; {note}" if note else line


def _passing(rows: Rows[FLOW], suspects: Sequence[str], seconds: float) -> Array:
    if not suspects:
        return rows
    made = {
        "bit_rate": lambda: rows["bytes"] * (8 / max(seconds, 1e-9)),
        "packet_rate": lambda: rows["packets"] / max(seconds, 1e-9),
    }
    table = RowTable(rows, made)
    passed = [parse(text, WINDOW_FLOWS).mask(table) for text in suspects]
    return rows[np.logical_or.reduce(passed)]


def _numbers(values: Array, weights: Array, where: Array, name: Callable[[int], str]) -> Distinct:
    """Count the values (n,) of the rows `where`; shares are of the weights of all rows."""
    groups, first, sums = _grouped(values[where], weights[where])
    return Distinct(groups, _top(sums, weights, lambda at: name(int(values[where][first[at]]))))


def _addresses(rows: Rows[FLOW], end: str, weights: Array) -> Distinct:
    addresses, versions = rows[end], rows["version"]
    groups, first, sums = _grouped(address_keys(addresses, versions), weights)
    top = _top(sums, weights, lambda at: _address(addresses, versions, first[at]))
    network = _network(addresses[first], versions[first], sums) if groups > 1 else ""
    return Distinct(groups, top, network)


def _grouped(keys: Array, weights: Array) -> tuple[int, Array, Array]:
    """Return the number of distinct keys, and the place of one row and the weight of each."""
    if not len(keys):
        return 0, keys, weights
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return len(starts), order[starts], np.add.reduceat(weights[order], starts)


def _top(sums: Array, weights: Array, name: Callable[[int], str]) -> tuple[TopShare, ...]:
    total = max(1, int(weights.sum()))
    some = np.argpartition(sums, -_TOP)[-_TOP:] if len(sums) > _TOP else np.arange(len(sums))
    largest = some[np.argsort(sums[some], kind="stable")[::-1]].tolist()
    return tuple(TopShare(name(at), int(sums[at]) / total) for at in largest)


def _network(addresses: Array, versions: Array, sums: Array) -> str:
    """Return the longest prefix of distinct addresses (n, 16) with most of their weight."""
    least = _MOST * int(sums.sum())
    version = 4 if int(sums[versions == 4].sum()) >= least else 6
    chosen = versions == version
    addresses, sums = addresses[chosen], sums[chosen]
    if int(sums.sum()) < least:
        return ""
    bits = 0
    while len(sums) > 1:
        one = (addresses[:, bits // 8] >> np.uint8(7 - bits % 8) & 1).astype(bool)
        heavier = one if int(sums[one].sum()) * 2 > int(sums.sum()) else ~one
        if int(sums[heavier].sum()) < least:
            break
        addresses, sums = addresses[heavier], sums[heavier]
        bits += 1
    if len(sums) == 1 or bits < _PREFIX[version]:
        return ""
    raw = addresses[0].tobytes()[: 4 if version == 4 else 16]
    return str(ipaddress.ip_network((raw, bits), strict=False))


def _address(addresses: Array, versions: Array, at: int) -> str:
    return address_text(addresses[at].tobytes(), int(versions[at]))


def _flags_name(flags: int) -> str:
    names = [name for bit, name in enumerate(_FLAGS) if flags >> bit & 1]
    return "-".join(names) or "no flags"


# The line


def _line(finding: Finding, policy: str) -> str:
    sources = _ends(finding.sources, "sources")
    if service := _service(finding):
        sources += f" from {service} ({percent(finding.source_ports.top[0].share)})"
    took = duration(finding.seconds)
    amount = f"{finding.packets:,} packets, {byte_size(finding.bytes)} in {took}"
    if finding.lost:
        amount = f"at least {amount}; {finding.lost:,} packets are in no flow"
    is_one = finding.sources.top[0].share >= _MOST
    verb = verb_of(policy, 1 if is_one else finding.sources.count)
    whom = f"{_ends(finding.destinations, 'destinations')}{_targets(finding)}"
    return f"{sources} {verb} {whom}; {amount}"


def _ends(ends: Distinct, noun: str) -> str:
    """`192.0.2.7`, `192.0.2.7 (99.8 %)`, `250 sources of 10.0.0.0/24, none over 2 %`."""
    listed = ends.listed
    if ends.count == 1:
        return ends.top[0].name
    if not ends.chief and (ends.network or not listed):
        within = f" of {ends.network}" if ends.network else ""
        return f"{ends.count:,} {noun}{within}, none over {math.ceil(100 * ends.top[0].share)} %"
    said = ", ".join(f"{each.name} ({percent(each.share)})" for each in listed)
    more = ends.count - len(listed)
    return said if sum(each.share for each in listed) >= _MOST else f"{said} and {more:,} more"


def _targets(finding: Finding) -> str:
    """` tcp:80 (96 %) by SYN`, `, 1,998 ports by TCP SYN`, ` by GRE`, ` by 130 protocols`."""
    protocol, flags = finding.protocols.chief.upper(), finding.flags.chief
    if flags.count("-") >= _TOP:
        flags = ""  # Flags of whole connections.
    if finding.protocols.count > 1 and not protocol:
        return f" by {finding.protocols.count} protocols"
    if port := finding.ports.chief:
        share = percent(finding.ports.top[0].share)
        return f" {port} ({share}){f' by {flags}' if flags else ''}"
    ports = f", {finding.ports.count:,} ports" if finding.ports.count else ""
    return f"{ports} by {protocol} {flags}".rstrip()


def _service(finding: Finding) -> str:
    """Return the source port if several culprits share it, or if it is a system port: reflectors.

    Many scanners send from one port, which says nothing.
    """
    port = finding.source_ports.chief
    private = port and int(port.partition(":")[2]) >= _SYSTEM_PORTS
    return "" if private and finding.sources.chief else port


def _filter(finding: Finding) -> str:
    terms = []
    if finding.protocols.top[0].share >= _MOST:
        terms.append(f"proto:{finding.protocols.chief}")
    listed = finding.sources.listed
    few = sum(each.share for each in listed) >= _MOST
    if few or finding.sources.chief:
        terms.append(f"src:{','.join(each.name for each in listed[: None if few else 1])}")
    else:
        if source := finding.sources.network:
            terms.append(f"src:{source}")
        if destination := finding.destinations.chief or finding.destinations.network:
            terms.append(f"dst:{destination}")
        if port := finding.ports.chief:
            terms.append(f"dport:{port.partition(':')[2]}")
    if service := _service(finding):
        terms.append(f"sport:{service.partition(':')[2]}")
    return " ".join(terms)


ARROW = "->"
_SCANS = ("scans", "scan")
_FLOODS = ("floods", "flood")
_SWEEPS = ("sweeps", "sweep")
_VERBS = {
    "syn_flood": _FLOODS,
    "syn_ack_flood": _FLOODS,
    "ack_flood": _FLOODS,
    "tcp_flood": _FLOODS,
    "rst_flood": _FLOODS,
    "udp_flood": _FLOODS,
    "carpet_bombing": _FLOODS,
    "icmp_flood": _FLOODS,
    "gre_flood": _FLOODS,
    "protocol_flood": _FLOODS,
    "fragment_flood": ("floods with fragments", "flood with fragments"),
    "dns_amplification": ("sends large DNS answers to", "send large DNS answers to"),
    "amplification": ("sends unasked answers to", "send unasked answers to"),
    "port_scan": _SCANS,
    "slow_scan": _SCANS,
    "udp_scan": _SCANS,
    "protocol_scan": _SCANS,
    "tcp_sweep": _SWEEPS,
    "udp_sweep": _SWEEPS,
    "icmp_sweep": _SWEEPS,
    "worm": ("tries ports of worms at", "try ports of worms at"),
    "slowloris": ("keeps connections open at", "keep connections open at"),
    "http_flood": ("floods with requests", "flood with requests"),
    "brute_force": ("logs in again and again at", "log in again and again at"),
    "dns_water_torture": ("floods with queries", "flood with queries"),
    "dns_tunnel": ("sends long DNS queries to", "send long DNS queries to"),
    "icmp_tunnel": ("sends large pings to", "send large pings to"),
    "outgoing_volume": ("sends much to", "send much to"),
    "dhcp_storm": (
        "asks again and again for an address at",
        "ask again and again for addresses at",
    ),
}


def verb_of(policy: str, sources: int) -> str:
    """Return the verb for so many culprits, or an arrow."""
    one, many = _VERBS.get(policy, (ARROW, ARROW))
    return one if sources == 1 else many
