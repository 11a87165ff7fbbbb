"""Records of the socket probe, their join with the flows of their window, and filters' columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Rows, halves
from bpf.sockets.diag import TUPLE
from probes.filter.table import Coded
from probes.flow.grouping import REQUESTS
from probes.flow.records import FLOW, FlowDirection, hash_keys
from probes.snapshot import Described
from probes.tables.flow_columns import OWNER_COLUMNS

PROBE = "sockets"
"""Name of the probe; its tables are named after their metrics."""
SOCKETS_TABLE, OWNERS_TABLE, OWNERSHIP_TABLE = "sockets", "owners", "ownership"
"""Metrics of the probe's snapshots: rows of SOCKET, OWNER and OWNERSHIP. They have the number and
the times of the flow window that they explain, and are published in this order."""


class By(Described):
    """Source that named the owner, the best first. The number is the field `by` of SOCKET."""

    NONE = 0, "no source knows an owner"
    HOLDS = 1, "the process has a descriptor of the socket"
    OPENED = 2, "the process created the socket"
    CLOSED = 3, "the process closed the socket"
    LISTENER = 4, "the process has the listening socket of the connection's port"
    CGROUP = 5, "only the socket's cgroup is known"

    @property
    def label(self) -> str:
        """Name in tables and files: `holds`; empty for NONE."""
        return self.name.lower() if self else ""


class Reason(Described):
    """Result of the search for a flow's owner: each flow of a window has exactly one reason."""

    OWNED = 0, "a process or at least a cgroup of this host owns the socket"
    FORWARDED = 1, "neither end is an address of this host or of its namespaces"
    KERNEL = 2, "the kernel itself sends and answers: ICMP, tunnels, or closed connections"
    REFUSED = 3, "no socket listened: a reset or an ICMP error answered"
    NO_SOCKET = 4, "no socket of this host had these addresses and ports"
    NAT_UNRESOLVED = (
        5,
        "addresses are translated, and connection tracking can't tell the inner ones",
    )
    OTHER_NAMESPACE = 6, "the address is of a network namespace that can't be read"
    CLOSED_UNSEEN = 7, "the socket closed before a source saw its process"
    NOT_ASKED = (
        8,
        "beyond the largest flows of the window, incoming SYN without an answer, or all of a window"
        " because of --cpu",
    )
    SEVERAL = 9, "several processes hold the socket or may do so, and the owner is not sure"
    UNSEEN = 10, "a socket is there, and no source has seen its process yet"


class Limit(Described):
    """Limit of a TCP connection's throughput. The number is the field `limit` of SOCKET."""

    UNKNOWN = 0, ""
    IDLE = 1, "no data is sent, and none waits"
    APPLICATION = 2, "the application gives too little to send"
    RECEIVER = (
        3,
        "the receiver's window is full: the other end reads slowly, or its buffer is small",
    )
    SEND_BUFFER = 4, "the send buffer is too small"
    PACED = 5, "the application or a traffic control limits the pacing rate"
    QUEUE = 6, "packets wait in a queue of the network"
    LOSS = 7, "the network loses packets"
    BANDWIDTH = 8, "the network's bandwidth, or the congestion window still grows"
    READS_SLOWLY = 9, "the receiving process reads slower than data comes"
    LOST_BEFORE = 10, "received segments are lost before this host"
    SENDER = 11, "the other end sends no faster, or the path to this host carries no more"
    NO_ANSWER = 12, "packets are repeated in vain: the path is broken, or the other end is silent"
    REFUSED = 13, "the other end refuses the connection by a reset"

    @property
    def label(self) -> str:
        """Name in tables, files and filters: `send-buffer`; empty for UNKNOWN."""
        return self.name.lower().replace("_", "-") if self else ""


SOCKET = np.dtype([
    *TUPLE.descr,
    ("owner", "u4"), ("by", "u1"), ("nat", "?"), ("holders", "u2"), ("reason", "u1"),
    ("state", "u1"), ("limit", "u1"), ("limit_s", "u2"),
    ("cookie", "u8"), ("netns", "u4"), ("inode", "u4"), ("cgroup", "u8"), ("uid", "u4"),
    ("rtt_us", "u4"), ("min_rtt_us", "u4"), ("rttvar_us", "u4"), ("cwnd", "u4"), ("mss", "u2"),
    ("unacked", "u4"), ("notsent", "u4"), ("rqueue", "u4"), ("wqueue", "u4"),
    ("delivery_rate", "u8"), ("app_limited", "?"), ("busy", "f4"), ("rwnd", "f4"),
    ("sndbuf", "f4"), ("sent", "u8"), ("received", "u8"), ("segments", "u4"),
    ("retransmitted", "u4"), ("out_of_order", "u4"), ("reordered", "u4"), ("rtos", "u4"),
    ("drops", "u4"), ("queue_us", "u4"), ("asked", "?"), ("needless", "u4"),
    ("qdisc", "S16"), ("backlog", "u4"),
])  # fmt: skip
"""A socket that flows of the window belong to; one row for each pair of ends.

- `near`, `far`, ports, `protocol`, `version`: the ends as the packets show them, as in FLOW. `near`
  is the end on this host; of ICMP echo, `near_port` is the identifier, `far_port` type * 256 + code
  of the request, as in GROUP.
- `owner`: `number` in the table of owners, 0: none. `by`: By. `nat`: whether connection tracking
  translates the ends: the socket has other ones. `holders`: processes that hold the socket, as
  far as known. `reason`: Reason.
- `state`: TCP state of the kernel (1 established, 6 TIME_WAIT, 7 closed, 10 listener), 0 unknown.
- `limit`: Limit; `limit_s`: seconds since when it is this one.
- `cookie`: the kernel's number of the socket; `netns`: inode of its network namespace; `inode`: of
  the socket, 0 if closed or not accepted yet; `cgroup`: id of the holder's, else of the socket's;
  `uid`: of the socket's creator. 0 if unknown.
- Now: `rtt_us`, `min_rtt_us`, `rttvar_us` microseconds; `cwnd`, `unacked` segments; `mss` bytes;
  `notsent`, `rqueue`, `wqueue` bytes (of a listener, `rqueue` connections to accept and `wqueue`
  their limit); `delivery_rate` bytes/s, `app_limited`: whether the application limited it.
  `queue_us`: microseconds of `rtt_us` above the path's floor. `asked`: this host sent the last data
  of the connection. `qdisc`, `backlog`: the kind of the fullest queueing discipline of the
  interface by which packets leave, and its bytes that wait; only in windows with a verdict QUEUE.
- In the window: `busy`, `rwnd`, `sndbuf` shares of the time, 0 to 1, with data to send, limited by
  the receiver's window, limited by the send buffer; `sent`, `received` bytes of payload;
  `segments` sent; `retransmitted`, `out_of_order`, `reordered` segments; `needless`: those of
  `retransmitted` that the far end reports to have had already (DSACK); `rtos` timeouts;
  `drops` received packets that found no room in the buffer.

Source of the numbers: inet_diag and `struct tcp_info` (include/uapi/linux/tcp.h). Fields that the
kernel does not tell are 0."""

OWNER = np.dtype([
    ("number", "u4"), ("tgid", "u4"), ("start_ns", "u8"), ("uid", "u4"), ("user", "S32"),
    ("comm", "S16"), ("unit", "S64"), ("container", "S64"), ("pod", "S64"), ("netns", "u4"),
    ("flows", "u4"), ("packets", "u8"), ("bytes", "u8"),
])  # fmt: skip
"""An owner of sockets of the window: a process, or with `tgid` 0 a cgroup. Ascending by `number`.

`number` is the same in all windows of a run, from 1. `tgid` is the process as this host numbers
it; `start_ns` is when it started, CLOCK_BOOTTIME, as process numbers come again; `uid` its user,
all ones if unknown, and `user` the user's name. `comm` is the name of its first thread. `unit` is
of systemd, `container` the runtime's name or id, `pod` the name or uid of Kubernetes; empty if
unknown. `netns` is the inode of the sockets' network namespace. `flows`, `packets` and `bytes` are
of the owner's flows in the window. Texts are UTF-8, cut at a character."""

OWNERSHIP = np.dtype([("reason", "u1"), ("flows", "u4"), ("packets", "u8"), ("bytes", "u8")])
"""Flows of the window by Reason, a row for each reason that occurs. `flows`, `packets` and
`bytes` add up to the sums of the flow window."""


def not_asked(flows: Rows[FLOW]) -> tuple[Rows[SOCKET], Rows[OWNER], Rows[OWNERSHIP]]:
    """Return the tables of a window whose owners nobody looked for."""
    reasons = np.zeros(min(len(flows), 1), OWNERSHIP)
    sums = len(flows), flows["packets"].sum(), flows["bytes"].sum()
    reasons["reason"] = Reason.NOT_ASKED
    for name, value in zip(("flows", "packets", "bytes"), sums, strict=True):
        reasons[name] = value
    return np.empty(0, SOCKET), np.empty(0, OWNER), reasons


def owned_share(ownership: Rows[OWNERSHIP]) -> float | None:
    """Return the share of local bytes with an owner: the number of every table, screen and policy.

    Local are the bytes of all flows that are not forwarded. A flow whose socket several processes
    hold has an owner, as its rows show one. `ownership` is of dtype OWNERSHIP. None without local
    bytes.
    """
    reasons, sizes = ownership["reason"], ownership["bytes"]
    local = int(sizes[reasons != Reason.FORWARDED].sum())
    owned = int(sizes[np.isin(reasons, (Reason.OWNED, Reason.SEVERAL))].sum())
    return owned / local if local else None


_WORDS = 5


def ends_of(rows: Array) -> Array:
    """Return the two ends of each row as words (n, 5) u8, in the order of SOCKET's fields.

    `rows` (n,) has the ends of FLOW, GROUP or SOCKET. Of a flow, the near end is the source if it
    leaves this host, otherwise the destination. The fifth word has ports, protocol and version.
    """
    if "near" in (rows.dtype.names or ()):
        near, far = halves(rows["near"]), halves(rows["far"])
        near_port, far_port = (rows[f"{end}_port"].astype("u8") for end in ("near", "far"))
    else:
        leaves = rows["direction"] == FlowDirection.EGRESS
        source, destination = halves(rows["source"]), halves(rows["destination"])
        near = np.where(leaves[:, None], source, destination)
        far = np.where(leaves[:, None], destination, source)
        first, last = (rows[f"{end}_port"].astype("u8") for end in ("source", "destination"))
        icmp = _is_icmp(rows["protocol"])
        forward = leaves | icmp
        near_port, far_port = np.where(forward, first, last), np.where(forward, last, first)
        # An ICMP answer takes the type of its request (type * 256 + code).
        for number, types in REQUESTS.items() if icmp.any() else ():
            for answer, request in types.items():
                answers = (rows["protocol"] == number) & (far_port == answer << 8)
                far_port[answers] = request << 8
    words = np.empty((len(rows), _WORDS), "u8")
    words[:, :2], words[:, 2:4] = near, far
    words[:, 4] = near_port | far_port << np.uint64(16)
    words[:, 4] |= rows["protocol"].astype("u8") << np.uint64(32)
    words[:, 4] |= rows["version"].astype("u8") << np.uint64(40)
    return words


def swapped(ends: Array) -> Array:
    """Return the same ends with the other one near; of ICMP, the ports stay."""
    words = ends.copy()
    words[:, :2], words[:, 2:4] = ends[:, 2:4], ends[:, :2]
    last = ends[:, 4]
    ports = (last & np.uint64(0xFFFF)) << np.uint64(16) | last >> np.uint64(16) & np.uint64(0xFFFF)
    turned = last & ~np.uint64(0xFFFFFFFF) | ports
    protocol = (last >> np.uint64(32) & np.uint64(0xFF)).astype("u1")
    words[:, 4] = np.where(_is_icmp(protocol), last, turned)
    return words


def sockets_of(rows: Array, sockets: Rows[SOCKET]) -> Array:
    """Return the index (n,) i8 in `sockets` (m,) of each row's socket; -1: none.

    `rows` (n,) has the ends of FLOW or GROUP, `sockets` is of dtype SOCKET. A flow that this host
    forwards to one of its namespaces finds the socket at its other end. A row without a socket was
    not asked for, see Reason.NOT_ASKED.
    """
    if not len(sockets) or not len(rows):
        return np.full(len(rows), -1, "i8")
    ends = ends_of(rows)
    hashes = hash_keys(ends_of(sockets))
    order = np.argsort(hashes)
    ordered = hashes[order]
    found = _places(hash_keys(ends), ordered, order)
    missing = np.flatnonzero(found < 0)
    if len(missing):
        found[missing] = _places(hash_keys(swapped(ends[missing])), ordered, order)
    return found


def owners_of(sockets: Rows[SOCKET], owners: Rows[OWNER]) -> Array:
    """Return the index (n,) i8 in `owners` (m,) of each socket's owner; -1: none.

    `sockets` is of dtype SOCKET, `owners` of dtype OWNER of the same window.
    """
    if not len(owners):
        return np.full(len(sockets), -1, "i8")
    numbers = owners["number"]
    at = np.minimum(np.searchsorted(numbers, sockets["owner"]), len(owners) - 1)
    found: Array = np.where(numbers[at] == sockets["owner"], at, -1)
    return found


def _places(hashes: Array, ordered: Array, order: Array) -> Array:
    at = np.minimum(np.searchsorted(ordered, hashes), len(ordered) - 1)
    found: Array = np.where(ordered[at] == hashes, order[at], -1)
    return found


def _is_icmp(protocol: Array) -> Array:
    return (protocol == 1) | (protocol == 58)


OWNER_TEXTS = {column.name: column.owner for column in OWNER_COLUMNS}
"""Columns of texts, and their fields of OWNER."""


class Owned:
    """The socket and the owner of each of some rows (n,).

    The columns of `probes.filter.owners`, and numbers of the sockets: 0 or NaN if unknown.
    """

    salts: Array | None = None
    """Numbers (n,) u8 that tell flows of several hosts apart; None: the flows are of one host."""
    nodes: Mapping[int, str] = MappingProxyType({})
    """Names of these hosts, by their numbers."""

    def __init__(
        self, rows: Array, sockets: Rows[SOCKET], owners: Rows[OWNER], at: Array | None = None
    ) -> None:
        """`rows` (n,) have the fields of dtype FLOW, `sockets` (m,) of SOCKET, `owners` (k,) are
        of dtype OWNER, ascending by number. `at` has the sockets of the rows, if they are known."""
        self.sockets, self.owners = sockets, owners
        self.at = sockets_of(rows, sockets) if at is None else at
        """Places in `sockets`; -1: none."""

    def field(self, name: str) -> Array:
        """Return a field of SOCKET for each row, (n,); 0 without a socket."""
        found = np.zeros(len(self.at), self.sockets.dtype[name])
        known = self.at >= 0
        found[known] = self.sockets[name][self.at[known]]
        return found

    @cached_property
    def _owner_of_socket(self) -> NDArray[np.int64]:
        """Places in `owners` of the owners of the sockets, (m + 1,); the last is of no socket."""
        found = np.append(owners_of(self.sockets, self.owners), -1)
        return np.where(found < 0, len(self.owners), found)

    def owner_of_socket(self, place: int) -> int:
        """Return the place in `owners` of the owner of a socket; k: none."""
        return int(self._owner_of_socket[place])

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """Places in `owners`, (n,); k: none."""
        found: NDArray[np.int64] = self._owner_of_socket[self.at]
        return found

    @cached_property
    def reason(self) -> Array:
        """Reason of each row, (n,)."""
        return np.append(self.sockets["reason"], np.uint8(Reason.NOT_ASKED))[self.at]

    def texts(self, column: str) -> Coded:
        """Return a column of OWNER_TEXTS; empty without an owner."""
        fields = self.owners[OWNER_TEXTS[column]].tolist()
        return Coded(self.owner, [*(one.decode(errors="replace") for one in fields), ""])

    @property
    def columns(self) -> Mapping[str, Callable[[], Array]]:
        """Columns of numbers (n,), computed on use: `rtt` in seconds, `retrans` a share."""
        plain = {name: partial(self.field, name) for name in ("limit", "cwnd", "by")}
        return {
            **plain,
            "reason": lambda: self.reason,
            "pid": lambda: np.append(self.owners["tgid"], np.uint32(0))[self.owner],
            "rtt": lambda: _known(self.field("rtt_us") / 1e6),
            "delivery": lambda: self.field("delivery_rate") * 8.0,
            "retrans": self.retransmitted,
        }

    @property
    def coded(self) -> Mapping[str, Callable[[], Coded]]:
        """Columns of texts, computed on use."""
        return {name: partial(self.texts, name) for name in OWNER_TEXTS}

    def retransmitted(self) -> NDArray[np.float64]:
        """Return the share of retransmitted segments, (n,); NaN without segments.

        It is of the window, or of some seconds if the sockets have these fields.
        """
        of = "recent_" if "recent_segments" in (self.sockets.dtype.names or ()) else ""
        sent, again = (self.field(of + name) for name in ("segments", "retransmitted"))
        return np.where(sent > 0, again / np.maximum(sent, 1e-9), np.nan)


def _known(values: Array) -> NDArray[np.float64]:
    return np.where(values > 0, values, np.nan)
