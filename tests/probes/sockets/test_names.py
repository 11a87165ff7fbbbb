"""Names of owners from cgroup paths, state files and real cgroups."""

from __future__ import annotations

import ctypes as ct
import errno
import json
import os
import pwd
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bpf.sockets import cgroup_paths
from bpf.sockets.cgroup_paths import CgroupPaths
from probes.sockets import names
from probes.sockets.names import NameFinder, OwnerNames, UserNames, path_of_lines, read_path
from tests.bpf.cgroups import cgroup, python_in

ID = "ab" * 32
UID = "8f7e6d5c-1111-2222-3333-444455556666"
ESCAPED = UID.replace("-", "_")
PATIENCE_S = 10.0


@pytest.mark.parametrize(
    ("path", "unit", "container", "pod"),
    [
        ("/", "", "", ""),
        ("/init.scope", "init.scope", "", ""),
        ("/system.slice/ssh.service", "ssh.service", "", ""),
        ("/system.slice/system-getty.slice/getty@tty1.service", "getty@tty1.service", "", ""),
        ("/user.slice/user-1000.slice/session-3.scope", "session-3.scope", "", ""),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.slice/vte-1.scope",
            "vte-1.scope", "", "",
        ),
        ("/user.slice", "user.slice", "", ""),
        ("/system.slice/nginx.service/worker", "nginx.service", "", ""),
        (f"/system.slice/docker-{ID}.scope", "", ID, ""),
        (f"/docker/{ID}", "", ID, ""),
        (f"/docker/{ID}/system.slice/cron.service", "cron.service", ID, ""),
        (f"/machine.slice/libpod-{ID}.scope/container", "", ID, ""),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "", ID, ""),
        (f"/libpod_parent/libpod-{ID}", "", ID, ""),
        (f"/system.slice/nerdctl-{ID}.scope", "", ID, ""),
        (f"/ecs/0123/{ID}", "", ID, ""),
        ("/lxc.payload.web1/system.slice/nginx.service", "nginx.service", "web1", ""),
        ("/lxc/web1", "", "web1", ""),
        ("/machine.slice/machine-my\\x2dbox.scope", "", "my-box", ""),
        ("/machine.slice/systemd-nspawn@box.service/payload", "", "box", ""),
        (
            f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice"
            f"/cri-containerd-{ID}.scope",
            "", ID, UID,
        ),
        (f"/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope", "", ID, UID),
        (f"/kubepods/besteffort/pod{UID}/{ID}", "", ID, UID),
        (f"/kubepods/pod{'0f' * 16}/{ID}", "", ID, "0f" * 16),
        (f"/kubepods.slice/kubepods-pod{ESCAPED}.slice", "", "", UID),
        (
            f"/system.slice/containerd.service/kubepods-burstable-pod{ESCAPED}.slice"
            f":cri-containerd:{ID}",
            "", ID, UID,
        ),
        ("/system.slice/podman.service", "podman.service", "", ""),
    ],
)  # fmt: skip
def test_paths_of_systemd_and_runtimes(path: str, unit: str, container: str, pod: str) -> None:
    assert read_path(path) == OwnerNames(unit, container, pod)


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ("0::/system.slice/ssh.service", "/system.slice/ssh.service"),
        ("9:name=systemd:/a.service\n8:pids:/b\n0::/", "/a.service"),
        ("8:pids:/b\n9:name=systemd:/a.service\n0::/", "/a.service"),
        ("4:memory:/jobs/1\n1:cpu:/\n0::/", "/jobs/1"),
        ("4:memory:/jobs:1\n0::/c.scope", "/c.scope"),
        ("0::/", ""),
        ("", ""),
    ],
)
def test_cgroups_of_a_process(lines: str, path: str) -> None:
    assert path_of_lines(lines.splitlines()) == path


@contextmanager
def unit(name: str) -> Iterator[Path]:
    """A cgroup's folder with a name, as systemd makes it for a unit."""
    with cgroup() as above:
        folder = above / name
        folder.mkdir()
        try:
            yield folder
        finally:
            folder.rmdir()


@pytest.fixture
def named(tmp_path: Path) -> Iterator[NameFinder]:
    """Names with an empty folder instead of the host's files."""
    found = NameFinder(tmp_path)
    yield found
    found.close()


def test_names_of_a_container_and_its_pod(
    named: NameFinder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = f"/docker/{ID}"
    pod = f"/kubepods/pod{UID}/{ID}"
    assert named._names(docker) == OwnerNames("", ID[:12], "")
    assert named._names(pod) == OwnerNames("", ID[:12], UID)
    config = tmp_path / "var/lib/docker/containers" / ID / "config.v2.json"
    config.parent.mkdir(parents=True)
    config.write_text(json.dumps({"ID": ID, "Name": "/web"}))
    (tmp_path / "var/log/pods" / f"shop_cart-5d9_{UID}").mkdir(parents=True)
    logs = tmp_path / "var/log/containers"
    logs.mkdir()
    (logs / f"cart-5d9_shop_nginx-{ID}.log").touch()
    assert named._names(docker).container == ID[:12]  # not looked for so soon
    monkeypatch.setattr(names, "_AGAIN_S", 0.0)
    named._by_path.clear()
    assert named._names(docker) == OwnerNames("", "web", "")
    assert named._names(pod) == OwnerNames("", "nginx", "shop/cart-5d9")
    config.unlink()
    assert named._names(docker).container == "web"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"Name": 1}', "{"])
def test_a_strange_state_file(named: NameFinder, tmp_path: Path, content: str) -> None:
    config = tmp_path / "var/lib/docker/containers" / ID / "config.v2.json"
    config.parent.mkdir(parents=True)
    config.write_text(content)
    assert named._names(f"/docker/{ID}").container == ID[:12]


class Refusing:
    """A kernel that opens nothing by a handle."""

    def open_by_handle_at(self, *_: object) -> int:
        ct.set_errno(errno.EPERM)
        return -1


@pytest.mark.parametrize("by_handle", [True, False])
def test_a_cgroup_by_its_id(by_handle: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to open by a handle, a walk finds it; an ended one keeps its path."""
    if not by_handle:
        monkeypatch.setattr(cgroup_paths, "LIBC", Refusing())
    paths = CgroupPaths()
    with cgroup() as above, cgroup(above) as folder:
        number = folder.stat().st_ino
        assert paths.path(number) == f"/{above.name}/{folder.name}"
        assert paths.walks == (not by_handle)
    assert paths.path(number) == f"/{above.name}/{folder.name}"
    fresh = CgroupPaths()
    assert fresh.path(number) == ""
    assert fresh.path(0) == ""
    assert fresh.path(1) == "/"
    for each in (paths, fresh):
        each.close()


def test_the_owner_of_a_cgroup(named: NameFinder) -> None:
    with unit("nginx.service") as folder:
        number = folder.stat().st_ino
        assert named.owner(number) == OwnerNames("nginx.service")
    assert named.owner(number) == OwnerNames("nginx.service")


def test_the_owner_by_its_process(named: NameFinder) -> None:
    """On hosts of cgroup v1 every cgroup2 folder has the id of the root."""
    with unit("cron.service") as folder:
        with python_in(folder, "print(1, flush=True); input()") as process:
            assert process.stdout
            process.stdout.readline()
            start_ns = names._start_ns(process.pid)
            assert named.owner(1, process.pid, start_ns + 5_000_000) == OwnerNames("cron.service")
            # Another process had the number before.
            assert named.owner(1, process.pid, start_ns - 10**9) == OwnerNames()
        assert named.owner(1, process.pid, start_ns + 5_000_000) == OwnerNames("cron.service")
        assert named.owner(0, process.pid, start_ns) == OwnerNames()


def test_users_of_the_file(tmp_path: Path) -> None:
    passwd = tmp_path / "passwd"
    users = UserNames(passwd)
    passwd.write_text(
        "root:x:0:0::/:/bin/sh\ntoor:x:0:0::/:/bin/sh\nbroken\nweb:x:4000004000:1:::\n"
    )
    assert (users.name(0), users.name(4_000_004_000)) == ("root", "web")
    passwd.write_text("admin:x:0:0::/:/bin/sh\n")
    os.utime(passwd, ns=(1, 1))
    assert users.name(0) == "admin"


def test_a_slow_service_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def slow(uid: int) -> pwd.struct_passwd:
        answer.wait(PATIENCE_S)
        if uid == 4001:
            raise KeyError(uid)
        return pwd.struct_passwd((f"user{uid}", "x", uid, uid, "", "/", ""))

    monkeypatch.setattr(pwd, "getpwuid", slow)
    users = UserNames(tmp_path / "none")
    assert (users.name(4000), users.name(4001)) == ("4000", "4001")
    answer.set()
    deadline = time.monotonic() + PATIENCE_S
    while users.name(4000) != "user4000" or 4001 not in users._asked:
        users.name(4001)
        assert time.monotonic() < deadline
    assert users.name(4001) == "4001"
