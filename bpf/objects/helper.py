"""The object helper: runs clang and libbpf on sources and objects that may be anybody's.

It is a script and imports nothing of probedeck. Requests come in and replies go out over the socket
whose descriptor it is given; descriptors travel beside the reply (SCM_RIGHTS). A child
answers each request, so a crash of libbpf on a hostile object, or of clang, ends only the child.
The helper ends with its client.
"""

from __future__ import annotations

import base64
import ctypes as ct
import importlib.util
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
from typing import Any

CLANG_MEMORY = 1 << 30
FDS_PER_MESSAGE = 250  # the kernel takes at most SCM_MAX_FD = 253
PR_SET_PDEATHSIG = 1
DEEP = "a/b/c/d"
"""The source's folder, so deep that headers in parent folders have a place."""
KERNEL_TYPES = "vmlinux.h"
FLAGS = ("--target=bpf", "-g", "-O2", "-nostdlibinc", "-fno-caret-diagnostics",
         "-fno-color-diagnostics", "-Wno-unused-command-line-argument", "-Wno-unknown-attributes",
         "-Wno-compare-distinct-pointer-types", "-Wno-builtin-macro-redefined",
         "-D__STDC_HOSTED__=0",  # its own stdint.h, and a sign for the tree of headers
         "-Werror=implicit-function-declaration")  # fmt: skip
MACHINES = {"x86_64": "x86", "aarch64": "arm64"}
"""Architectures by the names that bpf_tracing.h has for them."""
LIBC = ct.CDLL(None)


def load(path: str) -> Any:
    """Load a module by its path: the product's directories must not be on the import path."""
    name = os.path.basename(path).removesuffix(".py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class ObjectHelper:
    """libbpf, loaded and confined."""

    def __init__(self, sock: socket.socket, compiler: str, clang: str, headers: str) -> None:
        """`compiler` is the folder of confinement.py, `headers` the header tree."""
        self._sock = sock
        confinement = load(os.path.join(compiler, "confinement.py"))
        self._map_bytes = load(os.path.join(compiler, "quota.py")).map_bytes
        here = os.path.dirname(os.path.abspath(__file__))
        libbpf = load(os.path.join(here, "libbpf.py"))
        self._object, self._library = libbpf.LoadedObject, libbpf.Libbpf()
        self._cpus = confinement.possible_cpus()
        self._clang = os.path.realpath(clang) if clang else ""
        self._folder = "/work"
        folders = [os.path.dirname(self._clang)] if clang else []
        kernel = {}
        if os.path.exists(libbpf.BTF_FILE):
            with open(libbpf.BTF_FILE, "rb") as btf:
                kernel[libbpf.BTF_FILE] = btf.read()
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
        os.makedirs(os.path.join(self._system, "types"))
        for name in ("bpf", "linux", "asm-generic", "xdp"):
            os.symlink(f"/usr/include/{name}", os.path.join(self._system, name))
        places = (f"/usr/include/{os.uname().machine}-linux-gnu/asm", "/usr/include/asm")
        if machine_headers := next(filter(os.path.isdir, places), ""):
            os.symlink(machine_headers, os.path.join(self._system, "asm"))
        libbpf_tree = os.path.join(headers, "libbpf")
        # The tree's vmlinux.h is bcc's, too.
        types = os.path.join(self._system, "types")
        system = [libbpf_tree, self._system, types, os.path.join(self._system, "bpf")]
        self._include = [part for each in system for part in ("-isystem", each)]
        # clang's own headers, such as stdbool.h, come before the tree's stand-ins.
        self._include += "-idirafter", os.path.join(headers, "include")

    def serve(self) -> None:
        """Answer requests until the client goes away."""
        stream = self._sock.makefile("rb")
        while header := stream.read(4):
            request = json.loads(stream.read(int.from_bytes(header, "little")))
            if "vmlinux" in request["source"] + "".join(request["headers"].values()):
                self._write_kernel_types()
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
            send(self._sock, {"stage": "crash", "status": status})

    def _write_kernel_types(self) -> None:
        path = os.path.join(self._system, "types", KERNEL_TYPES)
        if os.path.exists(path):
            return
        self._library.write_kernel_types(f"{path}.c")
        with (
            open(f"{path}.c", encoding="utf-8") as types,
            open(path, "w", encoding="utf-8") as file,
        ):
            file.write(
                "#ifndef __VMLINUX_H__\n#define __VMLINUX_H__\n#pragma clang attribute push "
                "(__attribute__((preserve_access_index)), apply_to = record)\n"
            )
            shutil.copyfileobj(types, file)
            file.write("#pragma clang attribute pop\n#endif\n")
        os.unlink(f"{path}.c")

    def _answer(self, request: dict[str, Any]) -> None:
        """Compile, load and reply; ends this process."""
        status = 1
        try:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            seconds = request["cpu_limit"]
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            reply: dict[str, Any] = {"stage": "", "said": "", "programs": [], "maps": [], "fds": []}
            fds = self._made(request, reply)
            messages = [fds[i : i + FDS_PER_MESSAGE] for i in range(0, len(fds), FDS_PER_MESSAGE)]
            reply["fds"], reply["fd_messages"] = len(fds), len(messages)
            send(self._sock, reply)
            for part in messages:
                socket.send_fds(self._sock, [b"F"], part)
            status = 0
        finally:
            os._exit(status)

    def _made(self, request: dict[str, Any], reply: dict[str, Any]) -> list[int]:
        """Fill in a reply; returns the descriptors of its programs, its maps and its types."""
        data = base64.b64decode(request["object"])
        if not data:
            data = self._compiled(request, reply)
            if not data:
                reply["stage"] = "clang"
                return []
        reply["stage"] = "open"
        try:
            opened = self._object(self._library, data)
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
            total += self._map_bytes(*sizes, self._cpus)
            if limit and total > limit:
                reply["stage"], reply["said"] = "memory", declared["name"]
                return []
        reply["stage"] = "load"
        code = opened.load(chosen, request["type"], request["attach_type"])
        loaded = list(opened.loaded(chosen))
        reply["programs"] = [program for program, _ in loaded]
        if code:
            reply["code"], reply["said"] = code, "\n".join(self._library.said)
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
        machine = MACHINES.get(os.uname().machine, "")
        command = [self._clang, *FLAGS, f"-D__TARGET_ARCH_{machine}", *request["cflags"], "-I.",
                   *self._include, "-c", request["name"], "-o", "-"]  # fmt: skip
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
        return os.pread(output, os.fstat(output).st_size, 0) if not reply["clang"] else b""


def send(sock: socket.socket, message: dict[str, Any]) -> None:
    """Send one message: its length, then JSON."""
    payload = json.dumps(message).encode()
    sock.sendall(len(payload).to_bytes(4, "little") + payload)


def main() -> None:
    sock = socket.socket(fileno=int(sys.argv[1]))
    # A terminal's Ctrl-C is the console's business; the socket's end is this process's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    helper = ObjectHelper(sock, *sys.argv[2:])
    send(sock, {"unconfined": helper.unconfined, "folder": helper.visible_folder})
    helper.serve()


if __name__ == "__main__":
    main()
