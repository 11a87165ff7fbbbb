"""The compile helper: the only process that holds bcc and LLVM.

It is run as a script by the system's Python, which has Debian's bcc, and imports nothing of
probedeck. Requests come in and replies go out over the socket whose descriptor it is given; file
descriptors of programs and maps travel beside the reply (SCM_RIGHTS). What clang prints goes to
file descriptor 2, a memory file that the client made, so that it can be read after a crash too.

LLVM crashes on some valid C, and libbcc prints to fd 2, changes the working directory and cannot
compile in two threads: none of that may happen in the process that draws the screen.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes as ct
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
import threading
from typing import Any

MEMORY_LIMIT = 1 << 30
TIME_LIMIT_S = 10
FDS_PER_MESSAGE = 250  # the kernel takes at most SCM_MAX_FD = 253
LOG_BYTES = 1 << 24
LOG_LEAST = 128  # what a kernel takes

# libbcc reads all of /proc/kallsyms at each compile, 65 ms, to learn which of these exist.
KSYMS = "".join(
    f"ffffffff8100{i:04x} T {name}\n"
    for i, name in enumerate(
        (
            "bpf_probe_read_kernel",
            "bpf_probe_read_user",
            "bpf_probe_read_kernel_str",
            "bpf_probe_read_user_str",
        )
    )
)


MS_BIND, MS_REC, MS_SLAVE, CLONE_NEWNS = 0x1000, 0x4000, 0x80000, 0x20000
MNT_DETACH = 2
ROOT = "/sys"
"""Where this process's root is put together: any directory that every machine has."""
KEPT = ("/usr", "/lib", "/lib32", "/lib64")
CPUS = "/sys/devices/system/cpu/possible"
"""How large libbcc makes a map with an entry for each CPU."""

# A key's padding is part of it: without this, what the stack held before would tell equal keys
# apart. clang 14 has it under two names, of which later ones know the first alone.
ZERO = (
    "-ftrivial-auto-var-init=zero",
    "-enable-trivial-auto-var-init-zero-knowing-it-will-be-removed-from-clang",
)


def confine(headers: str) -> str:
    """Leave this process no files but its libraries and headers; where the headers are then.

    Raises OSError where the kernel lets it unshare, and not mount or change its root.

    C can name any file (`#include`, `.incbin`, and by `#line` for the lines in a verifier's log),
    and much of what it says would get out by diagnostics. Also a short file takes the place of
    /proc/kallsyms. All that is in a mount namespace of this process alone.
    """
    libc = ct.CDLL(None, use_errno=True)

    def mount(source: str, target: str, kind: bytes | None, flags: int) -> None:
        if libc.mount(source.encode(), target.encode(), kind, flags, None):
            raise OSError(ct.get_errno(), os.strerror(ct.get_errno()), target)

    def put(path: str, text: str) -> None:
        os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
        with open(ROOT + path, "w") as file:
            file.write(text)

    with open(CPUS) as file:
        cpus = file.read()
    if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_SLAVE, None):
        # Not allowed (no CAP_SYS_ADMIN): it reads no more than its user may. Or the root is no
        # mount (a plain chroot), and mounting could be seen outside.
        return headers
    # A descriptor: the tree may be below what is mounted over.
    tree = os.open(headers, os.O_PATH)
    try:
        mount("none", ROOT, b"tmpfs", 0)
        for path in KEPT:
            if os.path.islink(path):
                os.symlink(os.readlink(path), ROOT + path)
            elif os.path.isdir(path):
                os.mkdir(ROOT + path)
                mount(path, ROOT + path, None, MS_BIND | MS_REC)
        os.mkdir(f"{ROOT}/headers")
        mount(f"/proc/self/fd/{tree}", f"{ROOT}/headers", None, MS_BIND)
        put("/proc/kallsyms", KSYMS)
        put(CPUS, cpus)
    except OSError:
        libc.umount2(ROOT.encode(), MNT_DETACH)  # libbcc needs what it hides
        raise
    finally:
        os.close(tree)
    os.chroot(ROOT)
    os.chdir("/")
    return "/headers"


def check_headers(path: str) -> None:
    """Refuse a header tree that another user could have written: it is compiled into the kernel."""
    at = os.path.realpath(path)
    while True:
        mode = os.stat(at).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise SystemExit(f"{at} is writable by everybody; its headers cannot be trusted")
        if at == "/":
            return
        at = os.path.dirname(at)


class Helper:
    """bcc, loaded and warmed up."""

    def __init__(self, headers: str) -> None:
        check_headers(headers)
        from bcc import BPF, lib

        class Module(BPF):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                try:
                    super().__init__(*args, **kwargs)
                except BaseException:
                    atexit.unregister(self.cleanup)  # bcc keeps what failed, too
                    raise

            def _trace_autoload(self) -> None:
                """Attach nothing: bcc would, by the name of a function such as kprobe__x."""

        with contextlib.suppress(OSError):
            headers = confine(headers)
        os.environ["BCC_KERNEL_SOURCE"] = headers
        self.bpf, self.lib = Module, lib
        # bcc 0.26 declares only a part of its own interface.
        for name, result in (
            ("bpf_num_tables", ct.c_size_t),
            ("bpf_table_name", ct.c_char_p),
            ("bpf_table_key_size_id", ct.c_size_t),
            ("bpf_table_leaf_size_id", ct.c_size_t),
            ("bpf_table_key_desc_id", ct.c_char_p),
            ("bpf_table_leaf_desc_id", ct.c_char_p),
            ("bpf_table_fd_id", ct.c_int),
            ("bpf_table_type_id", ct.c_int),
            ("bpf_table_max_entries_id", ct.c_size_t),
            ("bpf_table_flags_id", ct.c_int),
        ):
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = [ct.c_void_p] + [ct.c_size_t] * (name != "bpf_num_tables")
        self.log = ct.create_string_buffer(LOG_BYTES)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        # With a map, so that a missing privilege shows now rather than as a source's fault.
        text = "BPF_ARRAY(warm_map, int, 1); int warm(void *ctx) { return 0; }"
        for self.flags in (list(ZERO), list(ZERO[:1]), []):
            try:
                warm = Module(text=text, cflags=self.flags)
                break
            except Exception:  # libbcc has printed why
                continue
        else:
            raise SystemExit(1)
        warm.cleanup()
        atexit.unregister(warm.cleanup)

    def compile(self, request: dict[str, Any]) -> tuple[dict[str, Any], list[int], Any]:
        """Compile and verify; returns (reply, descriptors, what keeps the descriptors open)."""
        reply: dict[str, Any] = {"programs": [], "functions": [], "maps": [], "error": ""}
        fds: list[int] = []
        try:
            module = self.bpf(text=request["source"], cflags=[*self.flags, *request["cflags"]])
        except Exception as error:
            # What went wrong is on fd 2; bcc's own words say only that something did.
            reply["error"] = str(error) or type(error).__name__
            return reply, fds, None
        handle = module.module
        count = self.lib.bpf_num_functions(handle)
        names = [self.lib.bpf_function_name(handle, i) for i in range(count)]
        reply["functions"] = [name.decode() for name in names]
        for name in names:
            if request["function"] not in ("", name.decode()):
                continue
            program, fd = self.verify(handle, name, request["type"])
            reply["programs"].append(program)
            if fd >= 0:
                fds.append(fd)
        for i in range(self.lib.bpf_num_tables(handle)):
            fd = self.lib.bpf_table_fd_id(handle, i)
            reply["maps"].append(
                {
                    "name": self.lib.bpf_table_name(handle, i).decode(),
                    "bytecode_fd": fd,
                    "type": self.lib.bpf_table_type_id(handle, i),
                    "key_size": self.lib.bpf_table_key_size_id(handle, i),
                    "value_size": self.lib.bpf_table_leaf_size_id(handle, i),
                    "max_entries": self.lib.bpf_table_max_entries_id(handle, i),
                    "flags": self.lib.bpf_table_flags_id(handle, i),
                    "key": (self.lib.bpf_table_key_desc_id(handle, i) or b"").decode(),
                    "value": (self.lib.bpf_table_leaf_desc_id(handle, i) or b"").decode(),
                }
            )
            fds.append(fd)
        return reply, fds, module

    def verify(self, handle: Any, name: bytes, prog_type: int) -> tuple[dict[str, Any], int]:
        """Load one function; the verifier's log is asked for only when it was refused."""
        start = self.lib.bpf_function_start(handle, name)
        size = self.lib.bpf_function_size(handle, name)
        license_name = self.lib.bpf_module_license(handle)

        def load(level: int, buffer: Any, length: int) -> int:
            version = self.lib.bpf_module_kern_version(handle)
            fd: int = self.lib.bcc_func_load(
                handle, prog_type, name, start, size, license_name, version, level, buffer, length,
                None, 0xFFFFFFFF,
            )  # fmt: skip
            return fd

        log, places = b"", b""
        mark = os.lseek(2, 0, os.SEEK_CUR)
        # A log that does not fit its buffer makes the kernel refuse a valid program (ENOSPC).
        fd = load(0, None, 0)
        if fd < 0:
            fd = load(1, self.log, LOG_BYTES)
            log = self.log.value
            if fd < 0 and b"\n; " not in log:
                # Where it is EINVAL, libbcc tries again without lines. What does not fit is ENOSPC,
                # that it takes for an answer; and the log's end is there.
                load(1, self.log, max(LOG_LEAST, len(log)))
                places = self.log.value
            # libbcc prints the log on fd 2 as well, cut short.
            os.ftruncate(2, mark)
            os.lseek(2, mark, os.SEEK_SET)
        return {
            "name": name.decode(),
            "loaded": fd >= 0,
            "license": (license_name or b"GPL").decode(),
            "instructions": ct.string_at(start, size).hex(),
            "log": log.decode(errors="replace"),
            "places": places.decode(errors="replace"),
        }, fd


def serve(sock: socket.socket, helper: Helper) -> None:
    """Answer requests until the client goes away."""
    stream = sock.makefile("rb")
    while header := stream.read(4):
        request = json.loads(stream.read(int.from_bytes(header, "little")))
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)
        # SIGALRM's default action ends this process wherever LLVM is; the client starts another.
        signal.setitimer(signal.ITIMER_REAL, request.get("time_limit", TIME_LIMIT_S))
        reply, fds, module = helper.compile(request)
        signal.setitimer(signal.ITIMER_REAL, 0)
        messages = [fds[i : i + FDS_PER_MESSAGE] for i in range(0, len(fds), FDS_PER_MESSAGE)]
        reply["fds"], reply["fd_messages"] = len(fds), len(messages)
        payload = json.dumps(reply).encode()
        sock.sendall(len(payload).to_bytes(4, "little") + payload)
        for part in messages:
            socket.send_fds(sock, [b"F"], part)
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
    sock = socket.socket(fileno=int(sys.argv[1]))
    # A terminal's Ctrl-C is the console's business; the socket's end is this process's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_client, args=(sock,), daemon=True).start()
    try:
        helper = Helper(sys.argv[2])
    except ImportError as error:
        raise SystemExit(f"Python cannot import bcc: {error}") from None
    sock.sendall(b"R")
    serve(sock, helper)


if __name__ == "__main__":
    main()
