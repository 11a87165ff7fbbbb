"""Processes of probedeck that begin with most modules loaded, which is most of a start.

A process that has run nothing forks them. They share compiled sources, as `tests.support.compiling`
says. Tests handle them like other processes: they are children of the test's process.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from functools import cache
from inspect import signature
from typing import Any

from app.lab import netns

_PR_SET_CHILD_SUBREAPER = 36
_SERVER = """\
import ctypes, gc, importlib, json, os, runpy, socket, sys
import numpy.typing, pydantic, click
from tests.support import compiling
from tests.support.nobody import HELD, become_nobody

if compiling.COMPILED in os.environ:
    compiling.share()
for name in sys.argv.pop().split():
    importlib.import_module(name)

def wait_for_request(asked):
    while True:
        text, fds, _, _ = socket.recv_fds(asked, 1 << 16, 8)
        if not text:
            os._exit(0)
        if not (between := os.fork()):
            if child := os.fork():
                asked.send(str(child).encode())
                os._exit(0)
            return json.loads(text), fds
        os.waitpid(between, 0)
        # Now it is the child of whoever asked.
        asked.send(b"over")
        for fd in fds:
            os.close(fd)

gc.collect()
gc.freeze()  # memory that nobody touches is not copied
with socket.socket(fileno=int(sys.argv.pop())) as asked:
    request, (space, *streams) = wait_for_request(asked)
if ctypes.CDLL(None).setns(space, 0):
    os._exit(99)
for number, fd in enumerate(streams):
    os.dup2(fd, number)
for fd in (space, *streams):
    os.close(fd)
os.chdir(request["directory"])
os.environ.clear()
os.environ.update(request["environment"])
sys.argv += request["arguments"]
if held := os.environ.pop(HELD, ""):
    become_nobody(*map(int, held.split()))
runpy.run_module("app", run_name="__main__", alter_sys=True)
"""


_lock = threading.Lock()
"""Held by the thread that starts a process."""


@cache
def _server() -> tuple[socket.socket, object]:
    """The socket for requests, and the forking server, which ends with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-I", "-c", _SERVER, str(theirs.fileno()), _MODULES],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    return ours, server


_MODULES = """
app.api.client app.cli.main app.lab app.outputs.report app.run.headless app.run.start
probes.control.controller probes.flow.probe probes.path.probe
"""
"""Modules of most runs. No module reads its process's environment when it is imported."""


def _adopt(wanted: bool) -> None:
    """Have orphans among the descendants become children of this process, or not."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


_PARAMETERS = tuple(signature(subprocess.Popen._execute_child).parameters)[2:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


class WarmRun(subprocess.Popen[str]):
    """A `probedeck` with these arguments; takes only Popen's options for streams and `env`.

    It is in the network namespace of the calling thread. The variable `nobody.HELD` of `env` has
    the numbers of its capabilities, and it is no process of root then.
    """

    def _execute_child(self, args: tuple[str, ...], *rest: Any) -> None:
        """In the place of fork and exec."""
        given = dict(zip(_PARAMETERS, rest, strict=True))
        pipes = [given[name] for name in _PIPES]
        request = {
            "arguments": args,
            "directory": os.getcwd(),
            "environment": given["env"] or dict(os.environ),
        }
        streams = [fd if fd >= 0 else n for n, fd in enumerate((pipes[0], pipes[3], pipes[5]))]
        space = netns.current()
        with _lock:
            server, _ = _server()
            _adopt(True)
            try:
                socket.send_fds(server, [json.dumps(request).encode()], [space, *streams])
                self.pid = int(server.recv(64))
                assert server.recv(64) == b"over"
            finally:
                _adopt(False)
                os.close(space)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
