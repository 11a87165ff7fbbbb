"""The process that holds the lab: `python -I -m app.lab.holder MAIN_PID PLAN RATE`.

The holder creates the network, prints `{node: descriptor}` as one line of JSON, and keeps the
traffic running (RATE 0: none). It ends everything when its standard input or the main process ends.
No namespace has a name, so a signal that kills the holder ends everything, too. All processes of
the lab keep standard output open: its end of file means that all are gone.

Standard input is a Unix socket; each packet is an order. `true` or `false` switches the detour;
the answer is the CLOCK_MONOTONIC time of the new routes in ns. `[speed, ns]` with two descriptors
replays a capture, the first descriptor, from that CLOCK_MONOTONIC time on; the report goes to the
second descriptor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from app.lab import sender, topology, traffic
from app.lab.plan import CLIENT, SERVER, LabPlan, NodeAddresses
from app.lab.topology import carry
from bpf.errors import ProbedeckError
from bpf.machine import die_with_parent, enter_network

_RESTART_SECONDS = 1.0
"""Shortest time between two starts of a traffic process."""
_ORDER_BYTES = 128
"""Most bytes of an order."""


class _Worker:
    def __init__(self, work: Callable[[], None], *keeps: int, again: bool = True) -> None:
        """The child runs `work` with the descriptors `keeps`; `again` restarts it."""
        self.again = again
        self._work = work
        self._keeps = keeps
        self.start()

    def start(self) -> None:
        """Fork the child. This process must have no other thread."""
        self.restart_at = 0.0
        self._started = time.monotonic()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            # The child must never return into the frames of the caller.
            with contextlib.suppress(BaseException):
                self._run(parent)
            os._exit(1)
        self.pidfd = os.pidfd_open(self._pid)

    def _run(self, parent: int) -> None:
        die_with_parent()
        if os.getppid() != parent:
            return  # The parent ended before prctl.
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 2)
        below = 3
        for fd in (*sorted(self._keeps), os.sysconf("SC_OPEN_MAX")):
            os.closerange(below, fd)
            below = fd + 1
        self._work()

    def reap(self) -> None:
        """Reap the ended child; `restart_at` is the time of its restart."""
        os.close(self.pidfd)
        self.pidfd = -1
        os.waitpid(self._pid, 0)
        self.restart_at = self._started + _RESTART_SECONDS

    def kill(self) -> None:
        if self.pidfd >= 0:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def _traffic(
    ns: int, run: Callable[[NodeAddresses], Coroutine[None, None, None]], target: NodeAddresses
) -> None:
    enter_network(ns)
    asyncio.run(run(target))


def _watch(
    main_fd: int, workers: list[_Worker], obey: Callable[[bytes, Sequence[int]], None]
) -> None:
    """Obey orders and restart workers until the main process or the input ends."""
    orders = socket.socket(fileno=os.dup(0))
    while True:
        poll = select.poll()
        for fd in (0, main_fd, *(worker.pidfd for worker in workers if worker.pidfd >= 0)):
            poll.register(fd, select.POLLIN)
        due = [worker.restart_at for worker in workers if worker.pidfd < 0]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        ready = {fd for fd, _ in poll.poll(None if wait is None else wait * 1000)}
        if main_fd in ready:
            return
        if 0 in ready:
            order, fds, _, _ = socket.recv_fds(orders, _ORDER_BYTES, 2)
            if not order:
                return
            obey(order, fds)
            for fd in fds:
                os.close(fd)
        for worker in list(workers):
            if worker.pidfd in ready:
                worker.reap()
                if not worker.again:
                    workers.remove(worker)
            elif worker.pidfd < 0 and worker.restart_at <= time.monotonic():
                worker.start()


def main(main_pid: int, plan: LabPlan, rate: float) -> None:
    """Hold a lab until the main process ends or closes the input."""
    main_fd = os.pidfd_open(main_pid)
    if os.getppid() != main_pid:
        return  # The main process ended before pidfd_open.
    network = asyncio.run(topology.build(plan))
    spaces, cables = network.spaces, network.cables
    workers: list[_Worker] = []
    if cables:
        ends = [end for cable in cables for end in (cable.left, cable.right)]
        workers.append(_Worker(partial(carry, cables), *ends))
    if rate > 0:
        target = plan.addresses(SERVER)
        for node, run in ((SERVER, traffic.serve), (CLIENT, partial(traffic.use, rate=rate))):
            workers.append(_Worker(partial(_traffic, spaces[node], run, target), spaces[node]))
    print(json.dumps(spaces), flush=True)
    far = plan.links[0]
    ns = spaces[far.right]

    def obey(order: bytes, fds: Sequence[int]) -> None:
        what = json.loads(order)
        if fds:
            replay = partial(sender.serve, ns, far.right_interface, *fds, *what)
            workers.append(_Worker(replay, ns, *fds, again=False))
        else:
            asyncio.run(topology.switch(plan, spaces, detour=what))
            print(time.monotonic_ns(), flush=True)

    _watch(main_fd, workers, obey)
    for worker in workers:
        worker.kill()


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), LabPlan.parse(sys.argv[2]), float(sys.argv[3]))
    except (ProbedeckError, OSError) as error:
        sys.exit(str(error))
