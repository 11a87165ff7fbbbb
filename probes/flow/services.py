"""Services: the port of a conversation that serves, and its name; texts of ends and TCP flags.

One rule finds the port. It needs only the protocol and both ports, so that both directions of a
conversation have the same service in each window, whoever began and whatever was seen of it:

1. a port of the list here serves before a port of /etc/services, and that before an unknown one;
2. of two alike, the lower port serves.

Ports of /etc/services from 32768 on count as unknown: clients have their ports there.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

from bpf.arrays import Array, Row
from probes.filter.hosts import PROTOCOLS, TCP_FLAGS, address_text, protocol_name
from probes.flow.records import FLOW

WITH_PORTS = (6, 17, 33, 132, 136)
"""Protocols with ports: TCP, UDP, DCCP, SCTP and UDP-Lite."""
_FILE = Path("/etc/services")
_CLIENTS = 32768
"""First port that systems give to clients."""
_BOTH = {
    22: "ssh", 53: "dns", 80: "http", 88: "kerberos", 111: "rpc", 123: "ntp", 179: "bgp",
    389: "ldap", 443: "https", 464: "kpasswd", 514: "syslog", 853: "dns-tls", 1194: "openvpn",
    2049: "nfs", 2379: "etcd", 3260: "iscsi", 3389: "rdp", 3478: "stun", 5060: "sip",
    5061: "sips", 5201: "iperf3", 6881: "bittorrent", 8080: "http-alt", 8443: "https-alt",
    11211: "memcached",
}  # fmt: skip
_TCP = {
    20: "ftp-data", 21: "ftp", 23: "telnet", 25: "smtp", 110: "pop3", 135: "msrpc",
    139: "netbios", 143: "imap", 445: "smb", 465: "smtps", 587: "submission", 631: "ipp",
    636: "ldaps", 873: "rsync", 993: "imaps", 995: "pop3s", 1433: "mssql", 1521: "oracle",
    1723: "pptp", 1883: "mqtt", 3128: "proxy", 3306: "mysql", 4222: "nats", 5222: "xmpp",
    5432: "postgresql", 5672: "amqp", 5900: "vnc", 5985: "winrm", 6379: "redis",
    6443: "kubernetes", 6667: "irc", 8883: "mqtts", 9000: "clickhouse", 9042: "cassandra",
    9090: "prometheus", 9092: "kafka", 9100: "node-exporter", 9200: "elasticsearch",
    9418: "git", 10250: "kubelet", 10050: "zabbix", 27017: "mongodb",
}  # fmt: skip
_UDP = {
    67: "dhcp", 68: "dhcp-client", 69: "tftp", 137: "netbios-ns", 138: "netbios-dgm", 161: "snmp",
    162: "snmp-trap", 443: "quic", 500: "ike", 546: "dhcp6-client", 547: "dhcp6", 1812: "radius",
    1813: "radius-acct", 1900: "ssdp", 2055: "netflow", 2123: "gtp-c", 2152: "gtp-u",
    3784: "bfd", 4500: "ipsec-nat", 4739: "ipfix", 4789: "vxlan", 5353: "mdns", 5355: "llmnr",
    6081: "geneve", 6343: "sflow", 51820: "wireguard",
}  # fmt: skip
_OWN: dict[int, dict[int, str]] = {6: _BOTH | _TCP, 17: _BOTH | _UDP}
"""Names by protocol and port: known also where /etc/services is missing."""


@lru_cache(1)
def _names() -> dict[int, dict[int, str]]:
    """Names by protocol and port. Reads /etc/services once; the names here win."""
    names: dict[int, dict[int, str]] = {}
    with suppress(OSError):
        for line in _FILE.read_text(errors="replace").splitlines():
            fields = line.partition("#")[0].split()
            port, _, protocol = fields[1].partition("/") if len(fields) > 1 else ("", "", "")
            if port.isdecimal() and protocol in PROTOCOLS and 0 < int(port) < 1 << 16:
                names.setdefault(PROTOCOLS[protocol], {}).setdefault(int(port), fields[0])
    for number, own in _OWN.items():
        names.setdefault(number, {}).update(own)
    return names


@lru_cache(1)
def _ranks() -> Array:
    """How well a port is known (protocol, port): 0 unknown, 1 by /etc/services, 2 by the list."""
    ranks = np.zeros((1 << 8, 1 << 16), "u1")
    for number, names in _names().items():
        ranks[number, [port for port in names if port < _CLIENTS]] = 1
        ranks[number, list(_OWN.get(number, ()))] = 2
    return ranks


def service_ports(protocol: Array, near: Array, far: Array) -> Array:
    """Return the port (n,) u2 that serves: of `near` or `far`, (n,) each; 0 without ports."""
    near_port, far_port = near.astype("u2"), far.astype("u2")
    ranks = _ranks()
    near_rank, far_rank = ranks[protocol, near_port], ranks[protocol, far_port]
    of_near = (near_rank > far_rank) | ((near_rank == far_rank) & (near_port < far_port))
    found: Array = np.where(of_near, near_port, far_port)
    return np.where(np.isin(protocol, WITH_PORTS), found, np.uint16(0))


def service_name(protocol: int, port: int) -> str:
    """Return `https`, `udp/40001` for an unknown port, or the protocol if `port` is 0."""
    if not port:
        return protocol_name(protocol)
    return _names().get(protocol, {}).get(port) or f"{protocol_name(protocol)}/{port}"


_ICMP_TYPES = {
    1: {0: "reply", 3: "unreach", 5: "redirect", 8: "echo", 11: "exceeded"},
    58: {
        1: "unreach", 2: "too-big", 3: "exceeded", 128: "echo", 129: "reply", 133: "rs", 134: "ra",
        135: "ns", 136: "na", 143: "mld",
    },
}  # fmt: skip
"""Short names of message types (IANA), the rest by number."""


def endpoint(row: Row[FLOW], end: str) -> str:
    """Return `192.0.2.1:443`, `[2001:db8::1]:443`, or only the address.

    The source of ICMP is `192.0.2.1 id 77`, its destination `192.0.2.1 echo` or with a code
    `192.0.2.1 unreach/3`.

    `row` is of dtype FLOW or LIVE, `end` is `source` or `destination`.
    """
    version, protocol, port = int(row["version"]), int(row["protocol"]), int(row[f"{end}_port"])
    return endpoint_text(address_text(row[end].tobytes(), version), version, protocol, port, end)


def endpoint_text(text: str, version: int, protocol: int, port: int, end: str) -> str:
    """Return an endpoint, given its address as text."""
    if protocol in _ICMP_TYPES:
        if end == "source":
            return f"{text} id {port}" if port else text
        kind, code = port >> 8, port & 0xFF
        return f"{text} {_ICMP_TYPES[protocol].get(kind, kind)}" + (f"/{code}" if code else "")
    if protocol not in WITH_PORTS:
        return text
    return f"{text}:{port}" if version == 4 else f"[{text}]:{port}"


def flag_letters(flags: int) -> str:
    """Return TCP flags in tcpdump's order, with a dot for each unseen one: `.S.PA...`."""
    return "".join(letter if flags >> bit & 1 else "." for bit, letter in enumerate(TCP_FLAGS))
