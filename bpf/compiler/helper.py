"""The compile helper: the only process that holds bcc and LLVM.

The system's Python, which has the distribution's bcc, runs it as a script. It imports nothing of
probedeck. Requests come in and replies go out over the socket whose descriptor it is given; file
descriptors of programs and maps travel beside the reply (SCM_RIGHTS). clang prints to
file descriptor 2, a memory file of the client's, which stays readable after a crash.

LLVM crashes on some valid C, and libbcc prints to fd 2, changes the working directory and cannot
compile in two threads: none of that may happen in the process that draws the screen.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes as ct
import os
import resource
import select
import signal
import socket
import stat
import sys
import threading
from importlib import import_module
from typing import Any

# Its directory must not stay on the import path: bcc imports its own modules.
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
bcc_headers, confinement, helper_io, instructions, quota = map(
    import_module, ("bcc_headers", "confinement", "helper_io", "instructions", "quota")
)
del sys.path[0]

MEMORY_LIMIT = 1 << 30
TRACING = 26  # BPF_PROG_TYPE_TRACING
LOG_BYTES = 1 << 24
LOG_LEAST = 128  # what a kernel takes
MOST_PLACES = 4096
"""Bytes of a log's lines that are searched for the last one."""

UNRESOLVED = b"\x85\x10\0\0\xff\xff\xff\xff"
"""The call of a function that nothing defines: bcc's rewriter calls some that were cut."""

UAPI_HEADER = "/usr/include/linux/bpf.h"
"""A header of the kernel's user-space API, to which the header tree links."""

# A key's padding is part of it: without this, remains on the stack would make equal keys differ.
# clang 14 needs both flags; later versions know the first one alone.
ZERO = (
    "-ftrivial-auto-var-init=zero",
    "-enable-trivial-auto-var-init-zero-knowing-it-will-be-removed-from-clang",
)

TABLE = {
    "name": ("bpf_table_name", ct.c_char_p),
    "bytecode_fd": ("bpf_table_fd_id", ct.c_int),
    "type": ("bpf_table_type_id", ct.c_int),
    "key_size": ("bpf_table_key_size_id", ct.c_size_t),
    "value_size": ("bpf_table_leaf_size_id", ct.c_size_t),
    "max_entries": ("bpf_table_max_entries_id", ct.c_size_t),
    "flags": ("bpf_table_flags_id", ct.c_int),
    "key": ("bpf_table_key_desc_id", ct.c_char_p),
    "value": ("bpf_table_leaf_desc_id", ct.c_char_p),
}
"""The reply's description of a map: libbcc's function for each part, and the type of its result."""


def check_headers(path: str) -> None:
    """End if the kernel's headers are missing or if another user could have written `path`."""
    if not os.path.exists(UAPI_HEADER):
        raise SystemExit(f"the kernel's headers are missing: no {UAPI_HEADER}")
    at = os.path.realpath(path)
    while True:
        mode = os.stat(at).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise SystemExit(f"{at} is writable by everybody; its headers cannot be trusted")
        if at == "/":
            return
        at = os.path.dirname(at)


class CompileHelper:
    """bcc, loaded, confined and warmed up."""

    def __init__(self, headers: str, sock: socket.socket) -> None:
        check_headers(headers)
        cpus = confinement.possible_cpus()
        from bcc import BPF, lib

        class Module(BPF):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                try:
                    super().__init__(*args, **kwargs)
                except BaseException:
                    atexit.unregister(self.cleanup)  # bcc keeps failed objects, too
                    raise

            def _trace_autoload(self) -> None:
                """Attach nothing: bcc would, by the name of a function such as kprobe__x."""

        library = bcc_headers.library()
        self.headers = None
        """Cuts bcc's headers to the needs of a source; None where no file can be written."""
        self.unconfined = ""
        """Why this process can read the files of its user; empty if it is confined."""
        try:
            headers = confinement.hide_files(headers)
        except OSError as error:
            try:
                confinement.restrict_files(headers)
            except OSError as other:
                self.unconfined = f"{error.strerror}; {other.strerror}"
        else:
            self.headers = bcc_headers.BccHeaders(library, headers)
        confinement.drop_privileges(others_files=headers != confinement.HEADERS)
        # Only now: a thread keeps the root and the capabilities that it started with.
        threading.Thread(target=end_with_client, args=(sock,), daemon=True).start()
        self.quota = quota.Quota(cpus)
        os.environ["BCC_KERNEL_SOURCE"] = headers
        self.bpf, self.lib = Module, lib
        # bcc 0.26 leaves a part of its own interface undeclared.
        lib.bpf_num_tables.restype = ct.c_size_t
        lib.bpf_num_tables.argtypes = [ct.c_void_p]
        for name, result in TABLE.values():
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = [ct.c_void_p, ct.c_size_t]
        self.log = ct.create_string_buffer(LOG_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        # With a map, so that a missing privilege shows now, not as a mistake in a source.
        text = "BPF_ARRAY(warm_map, int, 1); int warm(void *ctx) { return 0; }"
        for self.flags in (list(ZERO), list(ZERO[:1]), []):
            clear_output()
            try:
                warm = self.module(text, [])
            except Exception:  # libbcc has printed why
                continue
            warm.cleanup()
            atexit.unregister(warm.cleanup)
            # A newer clang compiles, but complains about the second flag each time.
            if b"unknown argument" not in os.pread(2, os.fstat(2).st_size, 0):
                return
        raise SystemExit(1)

    def module(self, source: str, cflags: list[str], map_limit: int = 0) -> Any:
        """Return the source as a module of bcc. Its maps may take `map_limit` bytes."""
        flags = [*self.flags, *cflags]
        # Only whole headers tell a mistake of the source from a declaration that was cut.
        with contextlib.suppress(Exception):
            if self.headers and (cut := self.headers.flags("\n".join((source, *cflags)))):
                self.quota.begin(map_limit)
                made = self.bpf(text=source, cflags=[*flags, *cut])
                if not any(UNRESOLVED in code for code in self.functions(made).values()):
                    return made
                made.cleanup()
                atexit.unregister(made.cleanup)
        clear_output()
        self.quota.begin(map_limit)
        return self.bpf(text=source, cflags=flags)

    def compile(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int], Any]:
        """Compile and verify; returns (reply, descriptors, the object that keeps them open)."""
        reply: dict[str, Any] = {"programs": [], "functions": [], "maps": [], "error": ""}
        fds: list[int] = []
        lowest = os.dup(2)
        os.close(lowest)
        try:
            module = self.module(request["source"], request["cflags"], request["map_limit"])
        except Exception as error:
            # The reason is on fd 2; bcc's own exception has none.
            reply["error"] = str(error) or type(error).__name__
            return reply, fds, None
        handle = module.module
        functions = self.functions(module)
        reply["functions"] = [name.decode() for name in functions]
        for name, code in functions.items():
            if request["function"] not in ("", name.decode()):
                continue
            program, fd = self.verify(handle, name, code, request)
            reply["programs"].append(program)
            if fd >= 0:
                fds.append(fd)
        for i in range(self.lib.bpf_num_tables(handle)):
            declared = {}
            for key, (function, result) in TABLE.items():
                value = getattr(self.lib, function)(handle, i)
                declared[key] = (value or b"").decode() if result is ct.c_char_p else value
            reply["maps"].append(declared)
        maps = [declared["bytecode_fd"] for declared in reply["maps"]]
        fds += [*maps, *self.btf(lowest, min(maps, default=lowest))]
        return reply, fds, module

    def functions(self, module: Any) -> dict[bytes, bytes]:
        """Return the instructions of each function of a module, by its name."""
        handle, lib = module.module, self.lib
        names = [lib.bpf_function_name(handle, i) for i in range(lib.bpf_num_functions(handle))]
        return {
            name: ct.string_at(
                lib.bpf_function_start(handle, name), lib.bpf_function_size(handle, name)
            )
            for name in names
        }

    def btf(self, lowest: int, end: int) -> list[int]:
        """The descriptor of the source's BTF, which libbcc loads just before it makes the maps.

        libbcc has no function that tells it, and opening BTF by its id needs CAP_SYS_ADMIN.
        """
        for fd in range(lowest, end):
            info = (ct.c_uint32 * 4)()  # struct bpf_btf_info: a pointer, the size, the id
            length = ct.c_uint32(ct.sizeof(info))
            if self.lib.bpf_obj_get_info(fd, ct.byref(info), ct.byref(length)) == 0:
                return [fd]
        return []

    def verify(
        self, handle: Any, name: bytes, code: bytes, request: dict[str, Any]
    ) -> tuple[dict[str, Any], int]:
        """Load one function; a refused one is loaded again for the verifier's log.

        Tracing programs stay unverified: libbcc looks for the kernel's BTF, which is hidden here.
        """
        prog_type, attach_type = request["type"], request["attach_type"]
        size = len(code)
        constants = {int(marker): number for marker, number in request["constants"].items()}
        placed = ct.create_string_buffer(instructions.place_constants(code, constants), size)
        license_name = self.lib.bpf_module_license(handle)

        def load(level: int, buffer: Any, length: int) -> int:
            version = self.lib.bpf_module_kern_version(handle)
            fd: int = self.lib.bcc_func_load(
                handle, prog_type, name, placed, size, license_name, version, level, buffer, length,
                None, attach_type & 0xFFFFFFFF,
            )  # fmt: skip
            return fd

        log, places = b"", b""
        mark = os.lseek(2, 0, os.SEEK_CUR)
        # A log that does not fit its buffer makes the kernel refuse a valid program (ENOSPC).
        fd = load(0, None, 0) if prog_type != TRACING else -1
        if fd < 0 and prog_type != TRACING:
            fd = load(1, self.log, LOG_BYTES)
            log = self.log.value
            if fd < 0 and b"\n; " not in log:
                # After EINVAL, libbcc tries again without lines. ENOSPC, for a log that exceeds the
                # buffer, ends its tries; the log's end is in the buffer. A longer buffer has more
                # of it: in a short program the only line is at its beginning.
                for more in range(0, MOST_PLACES, 16):
                    room = max(LOG_LEAST, len(log) + more)
                    load(1, self.log, room)
                    places = self.log.value
                    if b"@ " in places or len(places) + 1 < room:
                        break
            # libbcc prints a truncated log on fd 2, too.
            os.ftruncate(2, mark)
            os.lseek(2, mark, os.SEEK_SET)
        return {
            "name": name.decode(),
            "loaded": fd >= 0,
            "license": (license_name or b"GPL").decode(),
            "instructions": code.hex(),
            "log": log.decode(errors="replace"),
            "places": places.decode(errors="replace"),
        }, fd


def clear_output() -> None:
    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)


def serve(sock: socket.socket, helper: CompileHelper) -> None:
    """Answer requests until the client goes away."""
    for request in helper_io.requests(sock):
        clear_output()
        # The signals' default action ends this process wherever LLVM is; the client starts another.
        signal.setitimer(signal.ITIMER_PROF, request["cpu_limit"])
        signal.setitimer(signal.ITIMER_REAL, request["wall_limit"])
        reply, fds, module = helper.compile(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        helper_io.send(sock, reply, fds)
        if module is not None:
            for program_fd in fds[: sum(p["loaded"] for p in reply["programs"])]:
                os.close(program_fd)
            # bcc keeps every object until exit, unless told otherwise.
            module.cleanup()
            atexit.unregister(module.cleanup)


def end_with_client(sock: socket.socket) -> None:
    """End this process when the client is gone, even in the middle of a compile."""
    gone = select.poll()
    gone.register(sock, select.POLLRDHUP)
    gone.poll()
    os._exit(0)


def main() -> None:
    sock = helper_io.connected(sys.argv[1])
    try:
        helper = CompileHelper(sys.argv[2], sock)
    except ImportError as error:
        raise SystemExit(f"Python cannot import bcc: {error}") from None
    helper_io.send(sock, {"unconfined": helper.unconfined})
    serve(sock, helper)


if __name__ == "__main__":
    main()
