"""Folders of cgroups by their ids.

An id is the inode of a folder of cgroup2. The kernel opens a folder by its id in 10 us
(open_by_handle_at(2), with CAP_DAC_READ_SEARCH); without that, a walk over all folders finds it.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Iterator

from bpf.attach.interface import cgroup2
from bpf.errors import KernelError
from bpf.machine import LIBC, checked

_FILEID_KERNFS = 0xFE
_HANDLE = struct.Struct("=IiQ")
"""struct file_handle: bytes of the id, type, id."""
_MOST = 1 << 14
"""Ids that are kept; ids never come again."""
_MOST_FOLDERS = 1 << 15
"""Folders that a walk visits."""
_WALK_S = 10.0
"""Least seconds between two walks."""


class CgroupPaths:
    """Paths of cgroups below the mount of cgroup2, such as `/system.slice/ssh.service`.

    A cgroup that has ended keeps the path of its last look-up. Without cgroup2 every
    path is empty.
    """

    def __init__(self) -> None:
        try:
            self._mount = str(cgroup2())
        except KernelError:
            self._mount = ""
        self._fd = os.open(self._mount, os.O_RDONLY) if self._mount else -1
        self._paths: dict[int, str] = {}
        self.walks = False
        """Whether the kernel or its rights need a walk."""
        self._walked_s = -_WALK_S

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def path(self, cgroup: int) -> str:
        """Return the path of a cgroup; `/` for the root, empty if the cgroup is unknown."""
        found = self._paths.get(cgroup)
        if found is None:
            found = self._find(cgroup) if cgroup and self._fd >= 0 else ""
            if found or not self.walks:
                self._keep(cgroup, found)
        return found

    def _keep(self, cgroup: int, path: str) -> None:
        if len(self._paths) >= _MOST:
            del self._paths[next(iter(self._paths))]
        self._paths[cgroup] = path

    def _find(self, cgroup: int) -> str:
        if not self.walks:
            try:
                return self._opened(cgroup)
            except OSError as error:
                if error.errno == errno.ESTALE:
                    return ""
                # No right to do so, or a kernel whose ids are no handles.
                self.walks = True
        if time.monotonic() < self._walked_s + _WALK_S:
            return ""
        self._walked_s = time.monotonic()
        for number, path in self._walk():
            self._keep(number, path)
        return self._paths.get(cgroup, "")

    def _opened(self, cgroup: int) -> str:
        handle = _HANDLE.pack(8, _FILEID_KERNFS, cgroup)
        fd = checked(LIBC.open_by_handle_at(self._fd, handle, os.O_PATH | os.O_CLOEXEC))
        try:
            path = os.readlink(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return path.removeprefix(self._mount) or "/"

    def _walk(self) -> Iterator[tuple[int, str]]:
        """Yield id and path of each folder, those above first."""
        waiting = [self._mount]
        visited = 0
        while waiting and visited < _MOST_FOLDERS:
            folder = waiting.pop()
            visited += 1
            try:
                yield os.stat(folder).st_ino, folder.removeprefix(self._mount) or "/"
                with os.scandir(folder) as entries:
                    waiting += [e.path for e in entries if e.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # gone meanwhile
