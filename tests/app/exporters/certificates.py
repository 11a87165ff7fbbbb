"""Certificates for tests, which sign themselves."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest


class Certificate(NamedTuple):
    """Files of a certificate and of its key."""

    cert: Path
    key: Path

    def server(self, clients: Path | None = None) -> ssl.SSLContext:
        """Return a server's side of TLS, which may want certificates of `clients`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=clients)
        context.load_cert_chain(*self)
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def certificate(directory: Path, name: str = "own") -> Certificate:
    """Make a certificate of 127.0.0.1, or skip the test."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    made = Certificate(directory / f"{name}.pem", directory / f"{name}.key")
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        f"-subj /CN={name} -addext subjectAltName=IP:127.0.0.1 -keyout {made.key} -out {made.cert}"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    return made
