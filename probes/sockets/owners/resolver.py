"""The order of questions for the owners of a window's flows, and the reason of each flow.

1. The end of a flow that is an address of this host, or of one of its namespaces, says where to
   ask. A flow without such an end is forwarded.
2. The kernel tells the socket of each pair of ends. If it is gone, the closed sockets tell it.
3. For ends without a socket, connection tracking tells the ends behind address translation. A
   listener on the same port does not prevent that: proxies of containers listen there, too.
4. Only then a closed UDP socket without a far end may be the one: ports come again at once.
5. The socket's cookie and inode tell the process: who holds it, opened it, closed it, or has the
   listener; or only its cgroup is known.
6. An accepted socket is of the process that holds it, which may be another one than the listener's:
   a child, or a service that systemd started. The listener's processes and their descendants are
   searched for it. If none is found, the listener's process is only one of several candidates.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bpf.arrays import Array, Row, Rows
from bpf.sockets.diag import INFO, TCP, UDP, SocketState
from probes.sockets.limits import PSH, RST, SYN
from probes.sockets.owners.known import Known, Process, keys_of, without_init
from probes.sockets.owners.rows import (
    OwnerAnswers,
    Questions,
    SocketSources,
    far_port_of,
    locate,
    near_port_of,
    protocol_of,
    tuples_of,
)
from probes.sockets.records import By, Reason, ends_of

BUDGET = 5000
"""Limit of questions to the kernel in a window: some 11 ms."""
CORE_SHARE, _LEAST = 0.1, 200
"""CPU time of answers, as a share of a core, and the questions that it leaves in any case."""
ONLY_SYN = 128
"""Most questions for pairs with an incoming SYN only: so a flood costs little."""
_SEARCHES = 4
"""Most searches for accepted sockets in a look, some 2 ms each: for those with most bytes."""
_NO_CGROUP = 1
"""Id of the root of cgroup2, and of every cgroup of version 1."""
_PASSES = 2
"""Complete passes over all descriptors after which a socket that nobody holds is the kernel's."""
_LATE = (
    Reason.NO_SOCKET, Reason.REFUSED, Reason.NAT_UNRESOLVED, Reason.CLOSED_UNSEEN, Reason.UNSEEN,
)  # fmt: skip
"""OwnerAnswers that a late source may change."""
_UNREACHABLE = ((1, 3), (58, 1))
"""Protocol and type of the ICMP errors that refuse a datagram."""
_NOT_CONNECTED = (SocketState.LISTEN, SocketState.TIME_WAIT)
_UNACCEPTED = (
    SocketState.ESTABLISHED, SocketState.SYN_RECV, SocketState.CLOSE_WAIT, SocketState.NEW_SYN_RECV,
)  # fmt: skip
"""States of a socket without an inode that waits for accept(2). In others its process closed it."""


class Resolver:
    """Finds the owners of a window's flows."""

    def __init__(self, known: Known, sources: SocketSources, budget: int = BUDGET) -> None:
        self._known = known
        self._sources = sources
        self._most = self._budget = budget
        self._unheld: dict[int, int] = {}
        """Complete passes when a socket that nobody holds was first seen, by cookie."""
        self._cgroups: dict[int, Process] = {}

    def resolve(self, questions: Questions, began_s: float) -> OwnerAnswers:
        """Answer the questions of a window that began at `began_s`, CLOCK_MONOTONIC."""
        answers = OwnerAnswers.of(questions, self._sources)
        foreign, syn = answers.space == 0, questions.only_syn
        unknown = Reason.OTHER_NAMESPACE if self._sources.unreadable else Reason.FORWARDED
        answers.reason[foreign] = unknown
        for which, most in (
            (foreign, self._budget),
            (~foreign & ~syn, self._budget),
            (~foreign & syn, ONLY_SYN),
        ):
            answers.listed[np.flatnonzero(which)[:most]] = True
        self._look(answers, np.flatnonzero(answers.listed & ~foreign), began_s)
        return answers

    def spend(self, spent_s: float, window_s: float) -> None:
        """Ask as much in the next window as fits its share of a core, by the CPU time of this one.
        Flows that are not asked about have the reason NOT_ASKED."""
        fits = min(self._budget * CORE_SHARE * window_s / max(spent_s, 1e-6), 2 * self._budget)
        self._budget = round(min(max(fits, _LEAST), self._most))

    def late(self, answers: OwnerAnswers) -> NDArray[np.int64]:
        """Return the places of the questions that a late source may answer."""
        late = np.isin(answers.reason, _LATE) | (answers.by == By.CGROUP)
        # The kernel tells of a closed socket by a worker, often after its TIME_WAIT began.
        ended = answers.info["state"] == SocketState.TIME_WAIT
        late |= ended & (answers.reason == Reason.KERNEL)
        # A closed socket has told everything.
        unsure = (answers.by == By.LISTENER) & (answers.reason == Reason.SEVERAL)
        late |= unsure & (answers.info["state"] != SocketState.CLOSE)
        return np.flatnonzero(answers.listed & late)

    def look_again(self, answers: OwnerAnswers, began_s: float) -> None:
        """Ask once more where no owner was found: sources may be late."""
        index = self.late(answers)
        for at in index:
            answers.leave(at, Reason.NOT_ASKED)
        answers.nat[index], answers.info[index] = False, 0
        answers.inside[index] = answers.space[index]
        self._look(answers, index, began_s)

    def _look(self, answers: OwnerAnswers, index: Array, began_s: float) -> None:
        protocol = protocol_of(answers.ends[index])
        with_ports = np.isin(protocol, (TCP, UDP))
        self._sources.listen(self._known)
        for at in index[~with_ports].tolist():
            self._own_raw(answers, at, began_s)
        index = index[with_ports]
        ends, space = answers.ends[index], answers.space[index]
        left = self._look_in(answers, index, ends, space, began_s)
        left = self._behind_nat(answers, left, began_s)
        ends, space = answers.ends[left], answers.space[left]
        self._finish(answers, left, ends, space, began_s)

    def _look_in(
        self, answers: OwnerAnswers, index: Array, ends: Array, space: Array, began_s: float
    ) -> NDArray[Any]:
        """Ask for the sockets of ends (k, 5) in the namespaces (k,), and for their processes.

        Returns the part of `index` (k,) without a connected socket, open or closed.
        """
        info, refused = self._ask(ends, space)
        answers.info[index] = info
        answers.reason[index[refused]] = Reason.OTHER_NAMESPACE
        # After the answers: by now the kernel has told of any socket that closed before them.
        self._sources.listen(self._known)
        ended = {number: self._sources.ended(number) for number in np.unique(space).tolist()}
        connected = info["found"] & ~np.isin(info["state"], _NOT_CONNECTED)
        left, open_rows = list[int](), list[int]()
        columns = (index, space, connected, info["cookie"], info["inode"])
        rows = zip(*(column.tolist() for column in columns), keys_of(ends), strict=True)
        for row, (at, where, is_open, cookie, inode, key) in enumerate(rows):
            if is_open:
                owned = self._own(answers, at, cookie, inode)
                sure = self._known.knows_all_holders(inode)
                if not owned or (not sure and answers.reason[at] == Reason.SEVERAL):
                    open_rows.append(row)
            elif found := ended[where].get(key):
                self._own_ended(answers, at, found.info)
            else:
                left.append(at)
        if open_rows:
            self._own_accepted(answers, index[open_rows], ends[open_rows], space[open_rows])
        doubtful = np.flatnonzero(self._doubtful(answers, index, ends, began_s))
        if len(doubtful):
            ends, space = ends[doubtful], space[doubtful]
            self._doubt_closers(answers, index[doubtful], ends, space, began_s)
        return np.array(left, "i8")

    def _ask(self, ends: Array, space: Array) -> tuple[Array, Array]:
        """Return INFO (k,), and where the kernel refused to answer (k,)."""
        info, refused = np.zeros(len(ends), INFO), np.zeros(len(ends), bool)
        for where in np.unique(space).tolist():
            of = np.flatnonzero(space == where)
            try:
                info[of] = self._sources.ask(where, tuples_of(ends[of]))
            except OSError:
                refused[of] = True
        return info, refused

    def _own(self, answers: OwnerAnswers, at: int, cookie: int, inode: int) -> bool:
        """Find the process of a socket."""
        holders = self._known.holders(inode) if inode else ()
        sure = bool(holders) and self._known.knows_all_holders(inode)
        if len(holders) == 1 and sure:
            answers.own(at, holders[0], By.HOLDS, 1)
            self._known.note_holder(cookie, holders[0])
        elif holders:
            answers.own_held(at, holders, self._known.opener(cookie), sure=sure)
        elif opener := self._known.opener(cookie):
            answers.own(at, opener, By.OPENED)
        elif holder := self._known.last_holder(cookie):
            answers.own(at, holder, By.HOLDS)
        elif closer := self._known.closer(cookie):
            answers.own(at, closer, By.CLOSED)
        else:
            return False
        self._unheld.pop(cookie, None)
        return True

    def _own_ended(self, answers: OwnerAnswers, at: int, info: Row[INFO]) -> None:
        """Find the process of a closed socket."""
        answers.info[at] = info
        answers.info["state"][at] = SocketState.CLOSE
        if not self._own(answers, at, int(info["cookie"]), 0):
            answers.leave(at, Reason.CLOSED_UNSEEN)

    def _own_accepted(self, answers: OwnerAnswers, index: Array, ends: Array, space: Array) -> None:
        """Find the listener of open sockets without a process; without one, their cgroup."""
        listeners = np.zeros(len(index), INFO)
        tcp = protocol_of(ends) == TCP
        listeners[tcp], _ = self._ask(_of_listener(ends[tcp]), space[tcp])
        self._search(answers.info["inode"][index], listeners)
        for row, at in enumerate(index.tolist()):
            info = answers.info[at]
            if self._own(answers, at, int(info["cookie"]), int(info["inode"])):
                continue
            waits = not info["inode"] and info["state"] in _UNACCEPTED
            if not self._own_listener(answers, at, listeners[row], waits=bool(waits)):
                self._own_by_cgroup(answers, at, info)

    def _search(self, inodes: Array, listeners: Rows[INFO]) -> None:
        """Look for the sockets (k,) in the processes of their listeners (k,)."""
        cookies = listeners["cookie"][listeners["state"] == SocketState.LISTEN].tolist()
        for cookie in list(dict.fromkeys(cookies))[:_SEARCHES]:
            of = listeners["cookie"] == cookie
            inode, opener = int(listeners["inode"][of][0]), self._known.opener(cookie)
            found = (*self._known.holders(inode), *((opener,) if opener else ()))
            if tgids := sorted({who.tgid for who in without_init(found)}):
                self._sources.search(self._known, [inode, *inodes[of].tolist()], tgids)

    @staticmethod
    def _doubtful(
        answers: OwnerAnswers, index: Array, ends: Array, began_s: float
    ) -> NDArray[np.bool_]:
        """Return which of `index` (k,) may name a child that only inherited the socket.

        A process that is older than the connection inherited nothing: it accepted the connection.
        """
        doubtful: NDArray[np.bool_]
        doubtful = (answers.by[index] == By.CLOSED) & (protocol_of(ends) == TCP)
        suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        for row in np.flatnonzero(doubtful):
            who, flags = answers.owner[index[row]], answers.questions.flags[index[row]]
            if who and flags & SYN and 0 < who.start_ns < (began_s + suspended_s) * 1e9:
                doubtful[row] = False
        return doubtful

    def _doubt_closers(
        self, answers: OwnerAnswers, index: Array, ends: Array, space: Array, began_s: float
    ) -> None:
        """Prefer the listener's process (k,): children of a forking server close any socket.

        A closer in another cgroup than the listener's stays: a service that systemd started for
        the connection.
        """
        wanted = _of_listener(ends)
        listeners, _ = self._ask(wanted, space)
        rows = zip(index.tolist(), space.tolist(), keys_of(wanted), listeners, strict=True)
        for at, where, key, listener in rows:
            if not listener["found"]:
                ended = self._sources.ended(where).unconnected(key, began_s)
                if ended is None:
                    continue
                listener = ended.info
            closer, opener = answers.owner[at], self._known.opener(int(listener["cookie"]))
            holders = self._known.holders(int(listener["inode"])) or ((opener,) if opener else ())
            if closer is None:
                continue
            cgroup = int(listener["cgroup"])
            rivals = tuple(
                each
                for each in holders
                if each is not closer and (each.cgroup or cgroup) == closer.cgroup
            )
            if rivals and closer in holders:
                answers.own(at, closer, By.CLOSED, reason=Reason.SEVERAL)
            elif rivals:
                answers.own_held(at, rivals, opener, By.LISTENER, sure=False)

    def _own_listener(
        self, answers: OwnerAnswers, at: int, listener: Row[INFO], *, waits: bool
    ) -> bool:
        """Name a process with the listener: surely the owner if the connection still `waits` for
        accept(2), and no other process can accept it.
        """
        if listener["state"] != SocketState.LISTEN:
            return False
        opener, inode = self._known.opener(int(listener["cookie"])), int(listener["inode"])
        holders = self._known.holders(inode) or ((opener,) if opener else ())
        if holders:
            sure = waits and len(holders) == 1 and self._known.knows_all_holders(inode)
            answers.own_held(at, holders, opener, By.LISTENER, sure=sure)
        return bool(holders)

    def _own_by_cgroup(self, answers: OwnerAnswers, at: int, info: Row[INFO]) -> None:
        """Say what is known of an open socket that no process has."""
        cookie, cgroup, passes = int(info["cookie"]), int(info["cgroup"]), self._known.passes
        first = self._unheld.setdefault(cookie, passes)
        if len(self._unheld) > self._most:
            del self._unheld[next(iter(self._unheld))]
        if passes >= first + _PASSES:
            answers.leave(at, Reason.KERNEL)
        elif cgroup > _NO_CGROUP:
            who = self._cgroups.setdefault(cgroup, Process(0, cgroup, b"", cgroup=cgroup))
            answers.own(at, who, By.CGROUP)
        else:
            answers.leave(at, Reason.UNSEEN)

    def _behind_nat(self, answers: OwnerAnswers, index: Array, began_s: float) -> NDArray[Any]:
        """Ask for the sockets behind address translation; return the rest of `index`."""
        asked = index[answers.space[index] == self._sources.home]
        if not len(asked):
            return index
        try:
            found, inner = self._sources.inner(tuples_of(answers.ends[asked]))
        except OSError:
            answers.reason[asked] = Reason.NAT_UNRESOLVED
            return index
        translated, ends = asked[found], ends_of(inner[found])
        space = locate(self._sources, ends, far=False)
        answers.nat[translated] = True
        for at in translated[space == 0]:
            answers.leave(at, Reason.FORWARDED)
        inside = space > 0
        translated, ends, space = translated[inside], ends[inside], space[inside]
        answers.inside[translated] = space
        none = self._look_in(answers, translated, ends, space, began_s)
        rows = np.isin(translated, none)
        self._finish(answers, none, ends[rows], space[rows], began_s)
        return np.setdiff1d(index, asked[found])

    def _finish(
        self, answers: OwnerAnswers, index: Array, ends: Array, space: Array, began_s: float
    ) -> None:
        """Answer questions (k,) without a connected socket, or say why there is none."""
        refusing, only_syn = self._refusing(answers.questions), answers.questions.only_syn.tolist()
        columns = (index, space, protocol_of(ends))
        rows = zip(*(column.tolist() for column in columns), keys_of(ends), strict=True)
        for at, where, protocol, key in rows:
            info, ended = answers.info[at], self._sources.ended(where)
            if answers.reason[at] == Reason.OTHER_NAMESPACE:
                continue
            if info["found"]:
                if info["state"] == SocketState.TIME_WAIT:
                    unseen = began_s < self._sources.since_s
                    answers.leave(at, Reason.CLOSED_UNSEEN if unseen else Reason.KERNEL)
                elif not self._own_listener(answers, at, info, waits=only_syn[at]):
                    answers.leave(at, Reason.UNSEEN)
            elif protocol == UDP and (closed := ended.unconnected(key, began_s)):
                self._own_ended(answers, at, closed.info)
            elif answers.reason[at] != Reason.NAT_UNRESOLVED:
                flags, came = answers.questions.flags[at], answers.questions.flags_in[at]
                # A process may hold a socket that the other end has reset.
                reset_later = came & RST and flags & PSH
                is_refused = not reset_later and (flags & RST or key[16:32] in refusing)
                unsure = reset_later or self._sources.losing or began_s < self._sources.since_s
                if not is_refused and unsure:
                    answers.leave(at, Reason.CLOSED_UNSEEN)
                else:
                    answers.leave(at, Reason.REFUSED if is_refused else Reason.NO_SOCKET)

    @staticmethod
    def _refusing(questions: Questions) -> frozenset[bytes]:
        """Return the far addresses to which this host sent that a port is unreachable."""
        kind, protocol = far_port_of(questions.ends) >> 8, questions.protocol
        refused = np.zeros(len(questions), bool)
        for number, wanted in _UNREACHABLE:
            refused |= (protocol == number) & (kind == wanted)
        refused &= questions.packets_out > 0
        return frozenset(ends[2:4].tobytes() for ends in questions.ends[refused])

    def _own_raw(self, answers: OwnerAnswers, at: int, began_s: float) -> None:
        """Find the process of a flow without ports: an ICMP echo's, or that with a raw socket."""
        ends = answers.ends[at : at + 1]
        protocol, identifier = int(protocol_of(ends)[0]), int(near_port_of(ends)[0])
        known, by = self._known, By.HOLDS
        if protocol in (1, 58) and not answers.questions.asks[at]:
            answers.leave(at, Reason.KERNEL)
            return
        found = known.raw_holders(protocol, identifier) if protocol in (1, 58) else ()
        found = found or known.raw_holders(protocol)
        if not found:
            found, by = known.raw_openers(protocol, began_s), By.OPENED
        if len(found) > 1:
            # ping(8) often takes its process number as the identifier.
            found = tuple(who for who in found if who.tgid & 0xFFFF == identifier) or found
        if found:
            answers.own_held(at, found, None, by)
        else:
            answers.leave(at, Reason.KERNEL)


def _of_listener(ends: Array) -> Array:
    """Return ends (k, 5) without the far end, as a listener's."""
    wanted = ends.copy()
    wanted[:, 2:4] = 0
    wanted[:, 4] &= ~np.uint64(0xFFFF0000)
    return wanted
