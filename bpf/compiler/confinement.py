"""Confinement of the compile helper: the files that it sees and the privileges that it keeps.

C can name any file (`#include`, `.incbin`, and `#line` for the lines in a verifier's log), and
diagnostics would show parts of it. LLVM parses input that may come from another host, so a bug in
it must not give its finder root's rights.

helper.py alone loads this module, in the system's Python: it imports nothing of probedeck.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import re
import resource
import shutil
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType

ROOT = "/sys"
"""Mount point of the helper's root file system: a directory that every machine has."""
LIBRARIES = (
    "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64",
)  # fmt: skip
"""Directories of distributions that compiling needs: libraries, Python and the kernel's headers."""
CPUS = "/sys/devices/system/cpu/possible"
"""libbcc reads the size of per-CPU maps from this file."""
HEADERS = "/headers"
"""The header tree in the helper's root."""
FILES = ("/proc/kallsyms", CPUS)
"""Files beside libraries and headers that libbcc reads."""

# libbcc reads all of /proc/kallsyms at each compile, 65 ms, to learn which of these exist.
KSYMS = b"".join(
    b"ffffffff8100%04x T %s\n" % (i, name)
    for i, name in enumerate(
        (
            b"bpf_probe_read_kernel",
            b"bpf_probe_read_user",
            b"bpf_probe_read_kernel_str",
            b"bpf_probe_read_user_str",
        )
    )
)

MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x1, 0x20, 0x1000, 0x4000, 0x80000
CLONE_NEWNS = 0x20000
MNT_DETACH = 2
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_SYS_ADMIN, CAP_PERFMON, CAP_BPF = 2, 12, 21, 38, 39
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63
# Landlock's system calls have these numbers on every architecture.
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1
LANDLOCK_EXECUTE, LANDLOCK_READ_FILE, LANDLOCK_READ_DIR = 1, 4, 8
LANDLOCK_EVERY_RIGHT = (1 << 13) - 1
"""Rights of the first version; later ones restrict what this process can't open anyway."""

_LIBC = ct.CDLL(None, use_errno=True)


def possible_cpus() -> int:
    """Return the number of CPUs that may come online, as per-CPU maps have entries."""
    with open(CPUS, encoding="ascii") as file:
        return int(re.split("[-,]", file.read().strip())[-1]) + 1


def hide_files(
    headers: str, folders: Sequence[str] = (), files: Mapping[str, bytes] = MappingProxyType({})
) -> str:
    """Leave this process a root with nothing but `LIBRARIES` and a copy of the header tree.

    `folders` are visible, too, and `files` have the given content. Returns the header tree's path
    in that root. A short file replaces /proc/kallsyms. All of it is in a mount namespace of this
    process, so it must have one thread only.
    Raises OSError if the kernel, a container or a security module forbids it. Then nothing has
    changed.
    """
    with open(CPUS, "rb") as file:
        cpus = file.read()
    _check(_LIBC.unshare(CLONE_NEWNS), "unshare")
    # EINVAL in a plain chroot: its root is no mount point, so mounts would be visible outside.
    _mount("none", "/", MS_REC | MS_SLAVE)
    _mount("none", ROOT, 0, b"tmpfs", b"mode=0755")
    mask = os.umask(0o022)
    try:
        inside = tuple(f"{path}/" for path in LIBRARIES)
        more = [path for path in folders if not f"{path}/".startswith(inside)]
        for path in (*LIBRARIES, *more):
            os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
            if os.path.islink(path):
                os.symlink(os.readlink(path), ROOT + path)
            elif os.path.isdir(path):
                os.mkdir(ROOT + path)
                _mount(path, ROOT + path, MS_BIND | MS_REC)
                # This process stays uid 0, which owns these files: libbcc looks at no kernel
                # symbols for another user.
                _mount("none", ROOT + path, MS_REMOUNT | MS_BIND | MS_RDONLY)
        _copy(headers, ROOT + HEADERS)
        for name, content in {"/proc/kallsyms": KSYMS, CPUS: cpus, **files}.items():
            _write(name, content)
        os.chroot(ROOT)
    except OSError:
        _LIBC.umount2(ROOT.encode(), MNT_DETACH)  # it hides files that libbcc needs
        raise
    finally:
        os.umask(mask)
    os.chdir("/")
    return HEADERS


def restrict_files(headers: str, more: Sequence[str] = (), folder: str = "") -> None:
    """Let this process open only libraries, the header tree, `FILES` and `more`, by Landlock.

    It may write in `folder`. It needs Linux 5.13 and no privilege. libbcc takes longer, because it
    reads all kernel symbols. Raises OSError if the kernel has no Landlock.
    """
    _check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    rights = ct.c_uint64(LANDLOCK_EVERY_RIGHT)
    ruleset = _LIBC.syscall(LANDLOCK_CREATE_RULESET, ct.byref(rights), ct.sizeof(rights), 0)
    _check(ruleset < 0, "Landlock")
    try:
        for path in (*LIBRARIES, headers, *FILES, *more):
            if os.path.exists(path):
                _allow(ruleset, path)
        if folder:
            _allow(ruleset, folder, LANDLOCK_EVERY_RIGHT)
        _check(_LIBC.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0), "Landlock")
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int = 0) -> None:
    if not rights:
        rights = LANDLOCK_READ_FILE | LANDLOCK_EXECUTE
        rights |= LANDLOCK_READ_DIR if os.path.isdir(path) else 0
    beneath = os.open(path, os.O_PATH)
    try:
        rule = struct.pack("<Qi", rights, beneath)
        kind = LANDLOCK_RULE_PATH_BENEATH
        _check(_LIBC.syscall(LANDLOCK_ADD_RULE, ruleset, kind, rule, 0), f"Landlock: {path}")
    finally:
        os.close(beneath)


def drop_privileges(*, others_files: bool) -> None:
    """Keep only the capabilities that loading packet programs and creating maps needs.

    `others_files` keeps the right to read files of every user: the header tree may be in a home
    directory. Capabilities belong to a thread, so this must come before the process has a second.
    """
    # Below Linux 5.11 maps are charged to this limit, and raising it needs CAP_SYS_RESOURCE.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY,) * 2)
    held = _held()
    kept = {CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF} & held
    if not {CAP_PERFMON, CAP_BPF} <= held:
        # A kernel before 5.8, or a container that does not know the newer ones.
        kept |= {CAP_SYS_ADMIN} & held
    if others_files:
        kept |= {CAP_DAC_READ_SEARCH} & held
    _check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "PR_SET_NO_NEW_PRIVS")
    for capability in range(LAST_CAPABILITY + 1):
        # Refused without CAP_SETPCAP, and for numbers that this kernel does not have.
        _LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    _LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    low, high = (sum(1 << c - base for c in kept if base <= c < base + 32) for base in (0, 32))
    # Effective, permitted, inheritable: the low words, then the high ones.
    _check(_LIBC.capset(_header(), (ct.c_uint32 * 6)(low, low, 0, high, high, 0)), "capset")


def _held() -> set[int]:
    """Return the permitted capabilities of this thread."""
    words = (ct.c_uint32 * 6)()
    _check(_LIBC.capget(_header(), words), "capget")
    permitted = words[1] | words[4] << 32
    return {number for number in range(LAST_CAPABILITY + 1) if permitted >> number & 1}


def _header() -> ct.Array[ct.c_uint32]:
    return (ct.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)


def _mount(
    source: str, target: str, flags: int, kind: bytes | None = None, data: bytes | None = None
) -> None:
    what = f"mount on {target}"
    _check(_LIBC.mount(source.encode(), target.encode(), kind, flags, data), what)


def _check(result: bool | int, what: str) -> None:
    if result:
        raise OSError(ct.get_errno(), f"{what}: {os.strerror(ct.get_errno())}")


def _write(path: str, content: bytes) -> None:
    os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
    with open(ROOT + path, "wb") as file:
        file.write(content)


def _copy(source: str, target: str) -> None:
    """Copy a tree: the original may belong to a user whose files this process soon can't read."""
    os.mkdir(target)
    for entry in os.scandir(source):
        to = os.path.join(target, entry.name)
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), to)
        elif entry.is_dir():
            _copy(entry.path, to)
        else:
            shutil.copyfile(entry.path, to)
