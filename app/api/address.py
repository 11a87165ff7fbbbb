"""Address of a controller, and the credentials for it."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from app.api.sockets import DEFAULT_SOCKET, read_token
from bpf.errors import UsageError
from probes.config.trusted_file import check_regular

DEFAULT_URL = f"unix:{DEFAULT_SOCKET}"


@dataclass(frozen=True, slots=True)
class Remote:
    """Address of a controller, and credentials for it."""

    url: str = DEFAULT_URL
    """`unix:PATH`, or the absolute path alone; `http://HOST:PORT` or `https://HOST:PORT`."""
    token: str = ""
    authorities: str = ""
    """PEM file of trusted certificate authorities; empty: the system's."""


@dataclass(frozen=True, slots=True)
class Access:
    """A checked address: how to connect, and the headers of each request."""

    url: str
    """As the user gave it."""
    base: str
    """Scheme and authority of the requests."""
    headers: Mapping[str, str] = field(repr=False)
    path: str = ""
    """Path of a Unix socket; empty: TCP."""
    host: str = ""
    port: int = 0
    tls: bool = False
    authorities: str = ""

    @classmethod
    def of(cls, remote: Remote) -> Self:
        """Check an address, and read its token. Raises UsageError."""
        headers = {"accept-encoding": "identity"}
        if remote.token:
            headers["authorization"] = f"Bearer {read_token(remote.token).decode()}"
        scheme, host, port, path = _parts(remote.url)
        if (scheme == "unix" or (not scheme and path.startswith("/"))) and path and not host:
            return cls(remote.url, "http://localhost", headers, path=path)
        if scheme not in ("http", "https") or not host:
            raise UsageError(
                f"{remote.url!r} is no controller's address",
                hint="unix:PATH, http://HOST:PORT or https://HOST:PORT",
            )
        if scheme == "http" and remote.token and not _is_here(host):
            raise UsageError(
                f"{remote.url} would have the token sent readable by all between",
                hint="use https, or a tunnel",
            )
        is_tls = scheme == "https"
        port = port or (443 if is_tls else 80)
        of_tls = remote.authorities if is_tls else ""
        return cls(remote.url, remote.url, headers, "", host, port, is_tls, of_tls)


def trusted(authorities: str) -> ssl.SSLContext:
    """Return a context that trusts a PEM file, or the system's authorities. Raises UsageError."""
    try:
        check_regular(authorities)
        return ssl.create_default_context(cafile=authorities or None)
    except OSError as error:
        reason = error.strerror or error.args[-1]
        raise UsageError(f"cannot use the certificates in {authorities}: {reason}") from None


def _parts(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port (0: none) and path; empty if `url` is no URL."""
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            return "", "", 0, ""
        return parts.scheme, parts.hostname or "", parts.port or 0, parts.path
    except ValueError:
        return "", "", 0, ""


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
