"""The network namespaces of the host, and ways into them.

A way in is a path: an open descriptor would keep the namespace of an ended container alive.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bpf.errors import KernelError, UsageError, printable
from bpf.machine import enter_network
from bpf.syscall import opened

_HERE = "/proc/thread-self/ns/net"
_NAMED = "/run/netns"
"""Where `ip netns` mounts namespaces."""
_ENTERING = "run as root, or with CAP_SYS_ADMIN; a process id needs CAP_SYS_PTRACE, too"


@dataclass(frozen=True, slots=True)
class Space:
    """A network namespace."""

    inode: int
    path: str = ""
    """A way in; empty: the calling thread's own."""
    label: str = ""
    """Its name: of `ip netns`, or of its first process; empty for the own one."""


def here() -> Space:
    """Return the namespace of the calling thread."""
    return Space(os.stat(_HERE).st_ino)


def every() -> list[Space]:
    """Return the own namespace, and all others that have a name or a process."""
    own = here()
    found = {own.inode: own}
    with suppress(OSError):
        for name in sorted(os.listdir(_NAMED)):
            _add(found, f"{_NAMED}/{name}", name)
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        _add(found, f"/proc/{pid}/ns/net", "")
    return list(found.values())


def _add(found: dict[int, Space], path: str, name: str) -> None:
    with suppress(OSError):  # It has ended, or nobody may look.
        inode = os.stat(path).st_ino
        if inode not in found:
            label = name or Path(path).parents[1].joinpath("comm").read_text("utf-8").strip()
            found[inode] = Space(inode, path, printable(label))


@contextmanager
def entered(space: Space) -> Iterator[None]:
    """Move the calling thread into a namespace for the block. Raises OSError if it is gone."""
    if not space.path:
        yield
        return
    with opened(os.open(_HERE, os.O_RDONLY)) as home:
        with opened(os.open(space.path, os.O_RDONLY)) as fd:
            enter_network(fd)
        try:
            yield
        finally:
            enter_network(home)


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Move the calling thread into a namespace by its name or a process id, for the block.

    Raises UsageError for an unknown name, KernelError without the right to enter.
    """
    path = f"/proc/{name}/ns/net" if name.isdecimal() else f"{_NAMED}/{name}"
    if "/" in name or not os.path.exists(path):
        what = "process" if name.isdecimal() else "network namespace"
        hint = "give a name of `ip netns`, a process id, or all"
        raise UsageError(f"no {what} {name!r}", hint=hint)
    with ExitStack() as stack:
        try:
            stack.enter_context(entered(Space(0, path)))
        except OSError as error:
            text = f"the network namespace {name}: {error.strerror}"
            raise KernelError(text, hint=_ENTERING) from None
        yield
