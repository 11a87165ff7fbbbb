"""The object helper: runs clang and libbpf on sources and objects that may be anybody's.

It is a script and imports nothing of probedeck. Requests come in and replies go out over the socket
whose descriptor it is given; descriptors travel beside the reply (SCM_RIGHTS). A child
answers each request, so a crash of libbpf on a hostile object, or of clang, ends only the child.
The helper ends with its client.
"""

from __future__ import annotations

import base64
import ctypes as ct
import hashlib
import os
import re
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

# These directories must not stay on the import path.
sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), sys.argv[2]]
confinement, helper_io, libbpf, quota = map(
    import_module, ("confinement", "helper_io", "libbpf", "quota")
)
del sys.path[:2]

CLANG_MEMORY = 1 << 30
PR_SET_PDEATHSIG = 1
DEEP = "a/b/c/d"
"""The source's folder, so deep that headers in parent folders have a place."""
KERNEL_TYPES = "vmlinux.h"
FLAGS = ("--target=bpf", "-g", "-O2", "-nostdlibinc", "-fno-caret-diagnostics",
         "-fno-color-diagnostics", "-Wno-unused-command-line-argument", "-Wno-unknown-attributes",
         "-Wno-compare-distinct-pointer-types", "-Wno-builtin-macro-redefined",
         # Its own stdint.h, and a sign for the tree of headers.
         "-U__STDC_HOSTED__", "-D__STDC_HOSTED__=0",
         "-Werror=implicit-function-declaration")  # fmt: skip
MACHINES = {"x86_64": "x86", "aarch64": "arm64"}
"""Architectures by the names that bpf_tracing.h has for them."""
LIBC = ct.CDLL(None)
_UNKNOWN = re.compile("undeclared|unknown type|incomplete|implicit|no member")
"""clang's words for a name that only more of the kernel's types may declare."""


class ObjectHelper:
    """libbpf, loaded and confined."""

    def __init__(self, sock: socket.socket, clang: str, headers: str) -> None:
        """`headers` is the header tree."""
        self._sock = sock
        self._library = libbpf.Libbpf()
        self._cpus = confinement.possible_cpus()
        self._clang = os.path.realpath(clang) if clang else ""
        self._folder = "/work"
        folders = [os.path.dirname(self._clang)] if clang else []
        kernel = {}
        if os.path.exists(libbpf.BTF_FILE):
            with open(libbpf.BTF_FILE, "rb") as btf:
                kernel[libbpf.BTF_FILE] = btf.read()
        given = headers
        self.unconfined = ""
        """Why this process can read the files of its user; empty if it is confined."""
        self.visible_folder = ""
        """Its folder of work if others see it: the client removes it."""
        try:
            headers = confinement.hide_files(headers, folders, kernel)
            os.mkdir(self._folder)
        except OSError as error:
            self.visible_folder = self._folder = tempfile.mkdtemp(prefix="probedeck-")
            try:
                confinement.restrict_files(headers, [*folders, *kernel], self._folder)
            except OSError as other:
                self.unconfined = f"{error.strerror}; {other.strerror}"
        confinement.drop_privileges(others_files=headers != confinement.HEADERS)
        # bpf_helpers.h of libbpf comes before the tree's own, which is bcc's.
        self._system = os.path.join(self._folder, "system")
        for folder in ("types", "whole"):
            os.makedirs(os.path.join(self._system, folder))
        for name in ("bpf", "linux", "asm-generic", "xdp"):
            os.symlink(f"/usr/include/{name}", os.path.join(self._system, name))
        places = (f"/usr/include/{os.uname().machine}-linux-gnu/asm", "/usr/include/asm")
        if machine_headers := next(filter(os.path.isdir, places), ""):
            os.symlink(machine_headers, os.path.join(self._system, "asm"))
        # The tree's vmlinux.h is bcc's, too.
        libbpf_tree, bpf = os.path.join(headers, "libbpf"), os.path.join(self._system, "bpf")
        self._include = [f"-isystem{each}" for each in (libbpf_tree, self._system, bpf)]
        # clang's own headers, such as stdbool.h, come before the tree's stand-ins.
        self._include += "-idirafter", os.path.join(headers, "include")
        self._trees = f"{headers}/", f"{given}/"

    def serve(self) -> None:
        """Answer requests until the client goes away."""
        for request in helper_io.requests(self._sock):
            if request["types"]:
                self._library.read_kernel_types()
            child = os.fork()
            if not child:
                self._answer(request)
            self._watch(child)

    def _watch(self, child: int) -> None:
        """Wait for a child; tell the client of a crash. If the client goes, the child goes, too."""
        ends = select.poll()
        process = os.pidfd_open(child)
        ends.register(process, select.POLLIN)
        ends.register(self._sock, select.POLLRDHUP)
        gone = all(fd != process for fd, _ in ends.poll())
        if gone:
            os.kill(child, signal.SIGKILL)
        os.close(process)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status and not gone:
            helper_io.send(self._sock, {"stage": "crash", "status": status})

    def _answer(self, request: dict[str, Any]) -> None:
        """Compile, load and reply; ends this process."""
        status = 1
        try:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            seconds = request["cpu_limit"]
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            reply: dict[str, Any] = {"stage": "", "said": "", "programs": [], "maps": []}
            helper_io.send(self._sock, reply, self._made(request, reply))
            status = 0
        finally:
            os._exit(status)

    def _made(self, request: dict[str, Any], reply: dict[str, Any]) -> list[int]:
        """Fill in a reply; returns the descriptors of its programs, its maps and its types."""
        data = base64.b64decode(request["object"])
        reply["said"] = request["said"]
        if not data:
            data = self._compiled(request, reply)
            if not data:
                reply["stage"] = "clang"
                return []
        reply["stage"] = "open"
        try:
            opened = libbpf.LoadedObject(self._library, data)
        except OSError as error:
            reply["said"] = "\n".join(self._library.said) or error.strerror
            return []
        reply["sections"] = opened.programs
        chosen = self._chosen(request, opened.programs)
        reply["fitting"] = chosen
        reply["stage"] = "function"
        if request["function"] and request["function"] not in chosen:
            return []
        is_tail_called = any(kind["type"] == 3 for kind, _ in opened.maps())
        if request["function"] and not is_tail_called:
            chosen = [request["function"]]
        elif not request["function"] and len(chosen) != 1:
            return []
        reply["stage"] = "constants"
        try:
            reply["constants"] = sorted(opened.constants(request["constants"]))
        except ValueError as error:
            reply["said"] = str(error)
            return []
        limit, total = request["map_limit"], 0
        for declared, _ in opened.maps():
            sizes = (declared[key] for key in ("type", "key_size", "value_size", "max_entries"))
            total += quota.map_bytes(*sizes, self._cpus)
            if limit and total > limit:
                reply["stage"], reply["said"] = "memory", declared["name"]
                return []
        reply["stage"] = "load"
        failed = opened.load(chosen, request["type"], request["attach_type"])
        loaded = list(opened.loaded(chosen))
        reply["programs"] = [program for program, _ in loaded]
        if failed:
            reply["said"] = "\n".join(self._library.said)
            return []
        maps = list(opened.maps())
        reply["maps"] = [{**declared, "bytecode_fd": fd} for declared, fd in maps]
        reply["stage"] = ""
        types = opened.btf_fd()
        return [fd for _, fd in (*loaded, *maps)] + ([types] if types >= 0 else [])

    def _chosen(self, request: dict[str, Any], programs: dict[str, tuple[str, int]]) -> list[str]:
        """Return the programs that fit the hook; an unknown section fits every hook."""
        kinds = request["sections"]
        return [
            name for name, (section, kind) in programs.items()
            if kinds.get(re.split("[/._]", section)[0], kind) in (0, request["type"])
        ]  # fmt: skip

    def _compiled(self, request: dict[str, Any], reply: dict[str, Any]) -> bytes:
        """Return the object that clang makes; its messages are `said`."""
        folder = os.path.join(self._folder, "source")
        shutil.rmtree(folder, ignore_errors=True)
        beside = os.path.join(folder, DEEP)
        texts = {**request["headers"], request["name"]: request["source"]}
        for name, text in texts.items():
            path = os.path.normpath(os.path.join(beside, name))
            if path.startswith(f"{folder}/"):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
        if request["types"]:
            self._write_kernel_types("types", request["types"])
        data = self._run_clang(request, reply, beside, "types")
        if not data and request["types"] and _UNKNOWN.search(reply["said"]):
            self._write_kernel_types("whole", ())
            data = self._run_clang(request, reply, beside, "whole")
        return data

    def _write_kernel_types(self, folder: str, numbers: Sequence[int]) -> None:
        """Write vmlinux.h with the types `numbers`, or once with all types."""
        path = os.path.join(self._system, folder, KERNEL_TYPES)
        if numbers or not os.path.exists(path):
            self._library.write_kernel_types(path, numbers)

    def _run_clang(
        self, request: dict[str, Any], reply: dict[str, Any], beside: str, types: str
    ) -> bytes:
        """Run clang in the folder `beside`, with vmlinux.h of the folder `types`."""
        machine = MACHINES.get(os.uname().machine, "")
        used = os.path.join(self._folder, "used")
        command = [self._clang, *FLAGS, f"-D__TARGET_ARCH_{machine}", *request["cflags"], "-I.",
                   f"-isystem{os.path.join(self._system, types)}", *self._include,
                   "-MD", "-MF", used, "-c", request["name"], "-o", "-"]  # fmt: skip
        output, messages = os.memfd_create("object"), os.memfd_create("messages")
        clang = os.fork()
        if not clang:
            try:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                resource.setrlimit(resource.RLIMIT_AS, (CLANG_MEMORY, CLANG_MEMORY))
                os.chdir(beside)
                os.dup2(output, 1)
                os.dup2(messages, 2)
                os.execv(self._clang, command)
            finally:
                os._exit(127)
        reply["clang"] = os.waitstatus_to_exitcode(os.waitpid(clang, 0)[1])
        reply["said"] = os.pread(messages, os.fstat(messages).st_size, 0).decode(errors="replace")
        if reply["clang"]:
            return b""
        data = os.pread(output, os.fstat(output).st_size, 0)
        reply["object"] = base64.b64encode(data).decode()
        reply["files"] = dict(self._digests(used))
        return data

    def _digests(self, used: str) -> Iterator[tuple[str, str]]:
        """Yield path and digest of each system header in a list of make's form."""
        with open(used, encoding="utf-8") as file:
            names = file.read().replace("\\\n", " ").split()
        for path in {os.path.realpath(name) for name in names if os.path.isabs(name)}:
            if not path.startswith(f"{self._folder}/"):
                with open(path, "rb") as header:
                    digest = hashlib.sha256(header.read()).hexdigest()
                yield path.replace(*self._trees), digest


def main() -> None:
    sock = helper_io.connected(sys.argv[1])
    helper = ObjectHelper(sock, *sys.argv[3:])
    helper_io.send(sock, {"unconfined": helper.unconfined, "folder": helper.visible_folder})
    helper.serve()


if __name__ == "__main__":
    main()
