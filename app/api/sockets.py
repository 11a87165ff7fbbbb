"""Listening sockets with restricted access, and files of tokens."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import socket
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from bpf.errors import UsageError
from probes.config.options import setting
from probes.config.trusted_file import read_secret

API = "API"
"""Heading of the options in the help."""
DEFAULT_SOCKET = "/run/probedeck/api.sock"
_LEAST_TOKEN = 16
"""Characters."""
_BACKLOG = 128


@dataclass(slots=True)
class Listening:
    """A listening, non-blocking socket. Leaving its context closes it."""

    socket: socket.socket
    path: str = ""
    """Path of a Unix socket."""
    inode: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Another process may have replaced the socket.
        with contextlib.suppress(OSError):
            if self.path and os.stat(self.path).st_ino == self.inode:
                os.unlink(self.path)
        self.socket.close()


def unix(path: str, group: str = "") -> Listening:
    """Listen at `path`, for this user alone, or for the members of a group, too.

    The socket of a dead process is replaced. Only the directory of the default socket is made: any
    other missing directory is a mistake in the path. Raises UsageError if another process listens
    there, if the group is unknown, or if the socket cannot be made.
    """
    directory = Path(path).parent
    members = _group_id(group) if group else -1
    if path != DEFAULT_SOCKET and not directory.exists():
        raise UsageError(f"cannot listen at {path}: there is no directory {directory}")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Of two processes that start at once, neither must take the other's new socket for dead.
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _remove_dead(path)
            if group and path == DEFAULT_SOCKET:
                _let_pass(lock, members)
            # Linux makes the file with the mode of the socket, so it never has wider rights. Until
            # `chown`, its group is the one of this process.
            os.fchmod(listening.fileno(), 0o600)
            listening.bind(path)
            if group:
                os.chown(path, -1, members)
                os.chmod(path, 0o660)
            listening.listen(_BACKLOG)
        finally:
            os.close(lock)
        listening.setblocking(False)
        return Listening(listening, path, os.stat(path).st_ino)
    except (OSError, UsageError) as error:
        listening.close()
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"cannot listen at {path}: {error.strerror or error}") from None


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise UsageError(f"there is no group {name!r}", hint=f"groupadd --system {name}") from None


def _let_pass(directory: int, group: int) -> None:
    """Let a group into a directory of this user that only the user may enter. Raises OSError."""
    found = os.fstat(directory)
    if found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        os.fchown(directory, -1, group)
        os.fchmod(directory, 0o710)


def _remove_dead(path: str) -> None:
    """Remove a dead socket. Raises UsageError if it is alive or no socket, and OSError."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise UsageError(f"{path} is there, and is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A full queue of clients also means alive.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except BlockingIOError:
            pass
    raise UsageError(
        f"another controller listens at {path}", hint="end it, or choose another socket"
    )


def tcp(address: str) -> Listening:
    """Listen at `HOST:PORT`. Raises UsageError."""
    family, where = _resolve(address)
    try:
        listening = socket.create_server(where, family=family, backlog=_BACKLOG)
    except OSError as error:
        # create_server() appends the address to the text of the error.
        reason = os.strerror(error.errno) if error.errno else error
        raise UsageError(f"cannot listen at {address}: {reason}") from None
    listening.setblocking(False)
    # Connections inherit the option; asyncio sets it only on sockets that it makes. Without it the
    # second part of an answer would wait 40 ms for the acknowledgement of the first.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Listening(listening)


def _resolve(address: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(
            f"{address!r} is no address to listen at", hint="HOST:PORT, such as 127.0.0.1:8765"
        )
    try:
        found = socket.getaddrinfo(
            bare, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise UsageError(f"cannot resolve {bare}: {error}") from None
    family, _, _, _, where = found[0]
    return family, (str(where[0]), int(where[1]))


def read_token(path: str, name: str = "token") -> bytes:
    """Return the token, or another secret, of a file that only its owner can read.

    Raises UsageError, which calls the secret by `name`.
    """
    try:
        token = read_secret(path)
    except OSError as error:
        raise UsageError(f"cannot read the {name} in {path}: {error.strerror}") from None
    if not token or not all(0x21 <= byte <= 0x7E for byte in token):
        raise UsageError(f"{path} holds no {name}: one word of ASCII characters")
    if len(token) < _LEAST_TOKEN:
        raise UsageError(
            f"the {name} in {path} has {len(token)} characters, and can be guessed",
            hint=f"at least {_LEAST_TOKEN}: openssl rand -hex 16",
        )
    return token


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one listening socket."""

    connections: int = 64
    request: float = 10.0
    """Seconds for a whole request, with the TLS handshake."""
    stall: float = 20.0
    """Seconds in which a reader takes no byte."""


@dataclass(frozen=True, slots=True)
class Api:
    """Options of the API. Files are read once, at the start."""

    PREFIX: ClassVar = "api"

    version: str = ""
    socket: str = setting(API, "", "Path of that socket.", "PATH", usual=DEFAULT_SOCKET)
    """A Unix socket for its owner only; empty: none."""
    group: str = setting(
        API, "", "Let the members of this group use that socket, with all rights.", "GROUP"
    )
    listen: str = setting(API, "", "Serve the API by TCP too; needs a token.", "HOST:PORT")
    """Also `[IPV6]:PORT`; port 0 is any free one; empty: no TCP."""
    token: str = setting(API, "", "Token of clients that may change things.", "FILE")
    read_token: str = setting(API, "", "Token of clients that may only read.", "FILE")
    action_token: str = setting(
        API, "", "Token of clients that may also set actions of policies.", "FILE"
    )
    cert: str = setting(API, "", "Certificate, PEM; needed unless HOST is loopback.", "FILE")
    key: str = setting(API, "", "Key of the certificate, PEM.", "FILE")
    limits: Limits = field(default_factory=Limits)
    opened: Callable[[str], Listening] = tcp
    """Opens the TCP socket at an address."""
