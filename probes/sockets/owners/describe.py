"""Names of owners: user, unit, container and pod of a process or a cgroup."""

from __future__ import annotations

import os
from contextlib import suppress

from probes.sockets.names import NameFinder
from probes.sockets.owners.known import UNKNOWN_USER, Process
from probes.sockets.owners.rows import Description


class Describer:
    """Names of owners, from a cache: each look-up happens once. For one thread at a time."""

    def __init__(self) -> None:
        self._names = NameFinder()

    def close(self) -> None:
        self._names.close()

    def __call__(self, who: Process) -> Description:
        if who.uid == UNKNOWN_USER and who.tgid:
            # No event told of the process, or it has ended.
            with suppress(OSError):
                who.uid = os.stat(f"/proc/{who.tgid}").st_uid
        found = self._names.owner(who.cgroup, who.tgid, who.start_ns)
        user = "" if who.uid == UNKNOWN_USER else self._names.user(who.uid)
        return Description(who.uid, user, found.unit, found.container, found.pod, who.cgroup)
