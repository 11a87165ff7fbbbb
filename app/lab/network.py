"""The running lab: its processes, and orders to them.

A holder process and its children keep client, routers and server alive: two children for traffic,
one that delays packets, and one for each replayed capture. If this process or one of those ends,
even by `kill -9`, nothing remains.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, TYPE_CHECKING, cast

from app.lab.plan import CLIENT, HOST_INTERFACE, SERVER, LabPlan
from bpf.errors import Closing, KernelError, ProbedeckError, UsageError
from bpf.features import Capability, capabilities
from bpf.machine import enter_network, time_limit
from probes.snapshot import Event

if TYPE_CHECKING:
    from app.lab.replay import Replay, Replaying

_ANSWER_SECONDS = 20.0
_LIMIT_VARIABLE = "PROBEDECK_LAB_LIMIT"
"""Variable that sets other seconds for an answer."""
_END_SECONDS = 5.0
_NEEDED = {Capability.CAP_NET_ADMIN, Capability.CAP_NET_RAW, Capability.CAP_SYS_ADMIN}
_QUIET_SECONDS = 1.2


class Lab(Closing):
    """A running network client - r1 - ... - rN - server, as a context manager.

    Raises UsageError for a wrong parameter, KernelError if a capability is missing, and
    ProbedeckError with the reason if the network cannot be made.
    """

    interface = HOST_INTERFACE
    """Name of the client's interface."""

    def __init__(
        self, plan: LabPlan | None = None, *, traffic: bool = True, rate: float = 1.0
    ) -> None:
        self.plan = plan or LabPlan()
        self.plan.check()
        if not 0.1 <= rate <= 10:
            raise UsageError(f"traffic rate {rate} is not possible", hint="0.1 to 10")
        if lacking := _NEEDED - capabilities():
            names = ", ".join(each.name for each in sorted(lacking))
            raise KernelError(f"making a lab needs {names}", hint="start it with sudo")
        server = self.plan.addresses(SERVER)
        self.server_ipv4, self.server_ipv6 = server.ipv4, server.ipv6
        arguments = (os.getpid(), self.plan.dump(), rate if traffic else 0)
        self._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with orders:
            self._holder = subprocess.Popen(
                [sys.executable, "-I", "-m", "app.lab.holder", *map(str, arguments)],
                stdin=orders.fileno(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                # The main process handles keys of the terminal such as ctrl+c.
                start_new_session=True,
            )
        self._output, self._errors = cast(
            tuple[IO[bytes], IO[bytes]], (self._holder.stdout, self._holder.stderr)
        )
        try:
            self._spaces: dict[str, int] = json.loads(self._answer("the lab could not be made"))
        except BaseException:
            self.close()
            raise
        self._quiet = time.monotonic() + _QUIET_SECONDS

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the lab, the holder first; empty when the lab has ended."""
        if self._holder.poll() is not None:
            return ()
        holder = self._holder.pid
        children = Path(f"/proc/{holder}/task/{holder}/children").read_text(encoding="ascii")
        return (holder, *map(int, children.split()))

    def open_namespace(self, node: str = CLIENT) -> int:
        """Return a descriptor of the node's namespace; the caller closes it.

        The namespace lives at least as long as the descriptor. Raises UsageError for an unknown
        node and ProbedeckError when the lab has ended.
        """
        self.plan.require(node)
        try:
            if self._holder.poll() is None:
                return os.open(f"/proc/{self._holder.pid}/fd/{self._spaces[node]}", os.O_RDONLY)
        except FileNotFoundError:
            pass
        raise ProbedeckError("the lab has ended")

    def enter(self, node: str = CLIENT) -> None:
        """Move the calling thread for good into the node. Raises as `open_namespace`."""
        fd = self.open_namespace(node)
        try:
            enter_network(fd)
        finally:
            os.close(fd)

    def detour(self, on: bool) -> int:
        """Send packets to the server by the detour of the plan, or by the plain path again.

        No packet is lost. Returns the time of the change, in ns of CLOCK_MONOTONIC. Raises
        UsageError if the plan has no detour, and ProbedeckError if the lab has ended.
        """
        if not self.plan.detour:
            raise UsageError("the lab has no detour", hint="ask for one in its plan")
        self._order(on)
        return int(self._answer("the lab has ended"))

    def settle(self) -> None:
        """Wait until the nodes have reported their multicast groups: only traffic is left."""
        time.sleep(max(0.0, self._quiet - time.monotonic()))

    def replay(self, replay: Replay) -> Replaying:
        """Start to send the frames of a capture to the client's interface.

        Several replays may run at once. Raises UsageError if the file is not readable, and
        ProbedeckError if the lab has ended.
        """
        from app.lab.capture import open_capture
        from app.lab.replay import Replaying

        mine, reports = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with open_capture(replay.path) as file, reports:
                begin_ns = time.monotonic_ns() + round(replay.delay * 1e9)
                self._order(
                    (replay.speed, begin_ns, replay.max_gap), file.fileno(), reports.fileno()
                )
        except BaseException:
            mine.close()
            raise
        return Replaying(mine)

    @contextmanager
    def watched(self, publish: Callable[[Event], None], over: Callable[[], None]) -> Iterator[None]:
        """Watch the lab during the block. If it ends, another thread publishes that, then calls
        `over`: its interface never returns."""

        def wait() -> None:
            self._holder.wait()
            if self._orders.fileno() >= 0:
                publish(Event.now("error", "lab", "its processes have ended"))
                over()

        Thread(target=wait, name="lab", daemon=True).start()
        yield

    def close(self) -> None:
        """End the lab, and wait for the end of its processes. A second call does nothing."""
        if self._orders.fileno() < 0:
            return
        self._orders.close()
        # Every process of the lab holds the other end: at end of file all of them are gone.
        if not _is_readable(self._output, _END_SECONDS):
            self._holder.kill()
        self._holder.wait()
        self._output.close()
        self._errors.close()

    def _order(self, what: object, *fds: int) -> None:
        try:
            socket.send_fds(self._orders, [json.dumps(what).encode()], fds)
        except OSError:
            raise ProbedeckError("the lab has ended") from None

    def _answer(self, otherwise: str) -> bytes:
        """Return the next answer of the holder. Raises ProbedeckError if the holder ended."""
        limit_s = time_limit(_LIMIT_VARIABLE, _ANSWER_SECONDS)
        if not _is_readable(self._output, limit_s):
            hint = f"on a slow machine set {_LIMIT_VARIABLE} to more seconds"
            raise ProbedeckError(f"the lab did not answer within {limit_s:g} s", hint=hint)
        line = self._output.readline()
        if not line:
            words = self._errors.read().decode(errors="replace").split("\n")
            reason = next((word for word in reversed(words) if word.strip()), "no reason given")
            raise ProbedeckError(f"{otherwise}: {reason.strip()}")
        return line


def _is_readable(file: IO[bytes], seconds: float) -> bool:
    """Wait for data or the end of the file. Unlike select, poll knows descriptors above 1023."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
