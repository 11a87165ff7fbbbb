"""The lab: a small network of namespaces with live traffic, for `probedeck lab` and for tests.

Client, routers and server exist only through one holder process and its two traffic processes.
However this process or one of those ends, `kill -9` included, nothing is left behind.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import IO, cast

from app.lab import netns, topology
from bpf.errors import DeckError, KernelError, UsageError

_START_SECONDS = 20.0
_END_SECONDS = 5.0

__all__ = ["Lab"]


class Lab:
    """A running network client - r1 - ... - rN - server; ends with its `with` block.

    Raises UsageError for a wrong parameter, KernelError without root, and DeckError, with the
    reason, when the network cannot be made.
    """

    interface = topology.HOST_INTERFACE
    """Name of the client's interface."""

    def __init__(self, *, routers: int = 6, traffic: bool = True, rate: float = 1.0) -> None:
        if not 1 <= routers <= topology.MAX_ROUTERS:
            raise UsageError(
                f"a lab of {routers} routers is not possible", hint=f"1 to {topology.MAX_ROUTERS}"
            )
        if not 0.1 <= rate <= 10:
            raise UsageError(f"traffic rate {rate} is not possible", hint="0.1 to 10")
        if os.geteuid() != 0:
            raise KernelError("making a lab needs root", hint="start it with sudo")
        self.nodes = topology.names(routers)
        """Every node from client to server."""
        self.client_ipv4 = topology.ipv4(0, 1)
        self.client_ipv6 = topology.ipv6(0, 1)
        self.server_ipv4 = topology.ipv4(routers, 2)
        self.server_ipv6 = topology.ipv6(routers, 2)
        arguments = (os.getpid(), routers, rate if traffic else 0)
        self._holder = subprocess.Popen(
            [sys.executable, "-I", "-m", "app.lab.holder", *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # A key such as ctrl+c at the terminal is the main process's to handle.
            start_new_session=True,
        )
        self._input, self._output, self._errors = cast(
            tuple[IO[bytes], IO[bytes], IO[bytes]],
            (self._holder.stdin, self._holder.stdout, self._holder.stderr),
        )
        try:
            self._spaces = self._await_spaces()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Every process of the lab, the holder first; empty when the lab has ended.

        A traffic process that was killed is replaced within about a second.
        """
        if self._holder.poll() is not None:
            return ()
        holder = self._holder.pid
        children = Path(f"/proc/{holder}/task/{holder}/children").read_text(encoding="ascii")
        return (holder, *map(int, children.split()))

    def open_namespace(self, node: str = topology.CLIENT) -> int:
        """A descriptor of the node's namespace; the caller closes it.

        The namespace lives at least as long as the descriptor. Raises UsageError for an unknown
        node and DeckError when the lab has ended.
        """
        if node not in self._spaces:
            raise UsageError(
                f"the lab has no node {node!r}", hint=f"one of {', '.join(self.nodes)}"
            )
        try:
            if self._holder.poll() is None:
                return os.open(f"/proc/{self._holder.pid}/fd/{self._spaces[node]}", os.O_RDONLY)
        except FileNotFoundError:
            pass
        raise DeckError("the lab has ended")

    def enter(self, node: str = topology.CLIENT) -> None:
        """Move the calling thread, and threads and processes it starts later, into the node.

        There is no way back: where one is needed, use `netns.inside`. Raises as `open_namespace`.
        """
        fd = self.open_namespace(node)
        try:
            netns.setns(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """End the lab; returns when its processes are gone. May be called again."""
        if self._input.closed:
            return
        self._input.close()
        # Every process of the lab has the other end open: its end means that all are gone.
        if not select.select([self._output], [], [], _END_SECONDS)[0]:
            self._holder.kill()
        self._holder.wait()
        self._output.close()
        self._errors.close()

    def _await_spaces(self) -> dict[str, int]:
        """Descriptor numbers, in the holder, of each node's namespace."""
        if not select.select([self._output], [], [], _START_SECONDS)[0]:
            raise DeckError(f"the lab did not start within {_START_SECONDS:.0f} s")
        line = self._output.readline()
        if not line:
            words = self._errors.read().decode(errors="replace").split("\n")
            reason = next((word for word in reversed(words) if word.strip()), "no reason given")
            raise DeckError(f"the lab could not be made: {reason.strip()}")
        spaces: dict[str, int] = json.loads(line)
        return spaces
