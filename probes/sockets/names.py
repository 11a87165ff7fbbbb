"""Names of owners: users, and systemd units, containers and pods, read from paths of cgroups.

Runtimes write the id of a container, and Kubernetes the uid of a pod, into the names of cgroup
folders. Their names are in state files: Docker's configuration of a container, and the log folders
of the kubelet, which are the same for every runtime. Other runtimes' containers go by their id.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from bpf.errors import printable
from bpf.sockets.cgroup_paths import CgroupPaths

_K = TypeVar("_K")
_V = TypeVar("_V")
_MOST = 1 << 14
"""Paths, processes and users that are kept."""
_ROOT_CGROUP = 1
"""Id of the root of cgroup2, and of all processes where version 1 has them."""
_AGAIN_S = 30.0
"""Seconds after which the finder looks for a missing name once more."""
_ID = 12
"""Digits of a container's id that are shown, as runtimes do."""
_LARGEST_FILE = 1 << 20
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_HEX = r"(?P<id>[0-9a-f]{64})"
_NAME = r"(?P<id>[^/]+)"

_CONTAINERS = tuple(
    re.compile(pattern)
    for pattern in (
        rf"/docker-{_HEX}\.scope",
        rf"/docker/{_HEX}",
        rf"[/:]cri-containerd[-:]{_HEX}(?:\.scope)?",
        rf"[/:]crio-{_HEX}(?:\.scope)?",
        rf"/(?:libpod_parent/)?libpod-{_HEX}(?:\.scope)?",
        rf"/(?:nerdctl|containerd)-{_HEX}\.scope",
        rf"/kubepods[^:]*/{_HEX}",
        rf"/ecs/[^/]+/{_HEX}",
        rf"/lxc\.payload\.{_NAME}",
        rf"/lxc/{_NAME}",
        rf"/machine\.slice/machine-{_NAME}\.scope",
        rf"/machine\.slice/systemd-nspawn@{_NAME}\.service",
    )
)
_POD = re.compile(
    r"pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?=[./]|$)"
)
_UNIT = re.compile(r"/([^/]+\.(?:service|scope|socket|slice|mount|swap))(?=/|$)")
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class OwnerNames:
    """Names of a cgroup; each is empty if the cgroup is of none."""

    unit: str = ""
    """Unit of systemd; of a container with a systemd inside, the unit in it."""
    container: str = ""
    """Name, else the first digits of the id."""
    pod: str = ""
    """`NAMESPACE/NAME`, else the uid."""


def read_path(path: str) -> OwnerNames:
    """Read names off the path of a cgroup: container and pod as whole ids.

    >>> read_path("/system.slice/ssh.service").unit
    'ssh.service'
    """
    found = next((match for each in _CONTAINERS if (match := each.search(path))), None)
    pod = _POD.search(path)
    # Units outside of a container run the runtime, not the process.
    units = _UNIT.findall(path[found.end() :] if found else path)
    unit = next((each for each in reversed(units) if not each.endswith(".slice")), "")
    if not unit and units and not pod:
        unit = units[-1]
    return OwnerNames(
        unit,
        _ESCAPED.sub(lambda code: chr(int(code[1], 16)), found["id"]) if found else "",
        pod["uid"].replace("_", "-") if pod else "",
    )


class NameFinder:
    """Names of cgroups, processes and users; the finder looks up each name once.

    `root` is the folder of the host's files. For one thread at a time.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cgroups = CgroupPaths()
        self._by_path: dict[str, tuple[float, OwnerNames]] = {}
        """Names, and when to look for missing ones again: CLOCK_MONOTONIC, infinity for never."""
        self._by_process: dict[tuple[int, int], str] = {}
        self._users = UserNames(root / "etc/passwd")

    def close(self) -> None:
        self._cgroups.close()

    def user(self, uid: int) -> str:
        """Return a user's name, or the number in digits."""
        return self._users.name(uid)

    def owner(self, cgroup: int, tgid: int = 0, start_ns: int = 0) -> OwnerNames:
        """Return the names of a cgroup.

        On hosts of cgroup v1 the id says nothing: there the process `tgid` that started at
        `start_ns` (CLOCK_BOOTTIME) tells its cgroups.
        """
        path = self._cgroups.path(cgroup) if cgroup > _ROOT_CGROUP else ""
        if not path and tgid:
            path = self._path_of(tgid, start_ns)
        return self._names(path) if path else OwnerNames()

    def _path_of(self, tgid: int, start_ns: int) -> str:
        key = tgid, start_ns
        path = self._by_process.get(key)
        if path is None:
            path = ""
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{tgid}/cgroup").read_text(errors="replace").splitlines()
                # Read after the lines: they are of the process if it is still the same one.
                if abs(_start_ns(tgid) - start_ns) <= _TICK_NS:
                    path = path_of_lines(lines)
            _keep(self._by_process, key, path)
        return path

    def _names(self, path: str) -> OwnerNames:
        again_s, names = self._by_path.get(path, (0.0, OwnerNames()))
        if time.monotonic() < again_s:
            return names
        ids = read_path(path)
        found = self._with_names(ids)
        names = OwnerNames(*map(printable, (found.unit, found.container, found.pod)))
        missing = (ids.container and names.container == ids.container[:_ID]) or (
            ids.pod and names.pod == ids.pod
        )
        _keep(
            self._by_path,
            path,
            (time.monotonic() + _AGAIN_S if missing else float("inf"), names),
        )
        return names

    def _with_names(self, ids: OwnerNames) -> OwnerNames:
        """Replace ids by names from the state files of runtimes."""
        if len(ids.container) != 64:
            return ids
        container = self._docker(ids.container)
        pod = ids.pod
        if pod:
            # /var/log/pods/NAMESPACE_POD_UID and /var/log/containers/POD_NAMESPACE_NAME-ID.log
            for entry in self._listed("var/log/pods"):
                namespace, _, rest = entry.partition("_")
                name, _, uid = rest.rpartition("_")
                if uid == ids.pod and name:
                    pod = f"{namespace}/{name}"
            end = f"-{ids.container}.log"
            for entry in self._listed("var/log/containers"):
                if entry.endswith(end):
                    container = entry.removesuffix(end).rpartition("_")[2]
        return replace(ids, container=container or ids.container[:_ID], pod=pod)

    def _docker(self, container: str) -> str:
        path = self._root / "var/lib/docker/containers" / container / "config.v2.json"
        try:
            with path.open("rb") as file:
                name = json.loads(file.read(_LARGEST_FILE))["Name"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return name.removeprefix("/") if isinstance(name, str) else ""

    def _listed(self, folder: str) -> list[str]:
        try:
            return os.listdir(self._root / folder)
        except OSError:
            return []


def path_of_lines(lines: Iterable[str]) -> str:
    """Return the most telling path of /proc/PID/cgroup: version 2, else systemd's, else any."""
    found = ""
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if path in ("", "/"):
            continue
        if number == "0":
            return path
        if controllers == "name=systemd" or not found:
            found = path
    return found


def _start_ns(tgid: int) -> int:
    """Return when a process started, CLOCK_BOOTTIME in whole ticks. Raises OSError."""
    stat = Path(f"/proc/{tgid}/stat").read_bytes()
    return int(stat[stat.rindex(b")") + 2 :].split()[19]) * _TICK_NS


class UserNames:
    """Names of users: of the file `passwd` at once, of other services when they answer.

    Services such as LDAP may take seconds, so a thread asks them; until then the number stands for
    the name.
    """

    def __init__(self, passwd: Path) -> None:
        self._passwd = passwd
        self._modified_ns = -1
        self._local: dict[int, str] = {}
        self._asked: dict[int, str] = {}
        self._asking: threading.Thread | None = None

    def name(self, uid: int) -> str:
        self._read()
        if uid in self._local:
            return self._local[uid]
        found = self._asked.get(uid)
        if found is None:
            if self._asking is None or not self._asking.is_alive():
                # A daemon: a service that hangs must not keep the process from ending.
                self._asking = threading.Thread(target=self._ask, args=(uid,), daemon=True)
                self._asking.start()
            return str(uid)
        return found

    def _ask(self, uid: int) -> None:
        try:
            name = printable(pwd.getpwuid(uid).pw_name)
        except (KeyError, OSError):
            name = str(uid)
        _keep(self._asked, uid, name)

    def _read(self) -> None:
        """Read the file again if it has changed."""
        try:
            modified_ns = self._passwd.stat().st_mtime_ns
            if modified_ns == self._modified_ns:
                return
            lines = self._passwd.read_text(errors="replace").splitlines()
        except OSError:
            return
        self._modified_ns = modified_ns
        local: dict[int, str] = {}
        for line in lines:
            name, _, uid, *_ = (*line.split(":"), "", "", "")
            if uid.isdecimal():
                # The first name of a number is the user's, as in getpwuid(3).
                local.setdefault(int(uid), printable(name))
        self._local = local


def _keep(values: dict[_K, _V], key: _K, value: _V) -> None:
    """Store a value; the eldest one makes room."""
    if len(values) >= _MOST and key not in values:
        del values[next(iter(values))]
    values[key] = value
