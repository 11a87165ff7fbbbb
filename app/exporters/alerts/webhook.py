"""Ways of alerts: a POST of JSON for `http://` and `https://`, and JSON on the standard input of a
program, with the rights of the user."""

from __future__ import annotations

import hashlib
import hmac
import os
import shlex
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from http import HTTPStatus

from app.exporters.alerts.exporter import Alert, AlertExporter
from app.exporters.alerts.options import CommandOptions, WebhookOptions
from app.exporters.exporter import DeliveryError, RejectedError
from app.exporters.host import ExportHost
from app.exporters.http_post import HttpPost, secret_of
from app.files import environment_of, invoker, rights_of
from bpf.errors import UsageError
from bpf.machine import die_with_parent

_LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_SERVER_FAILS = frozenset(range(HTTPStatus.INTERNAL_SERVER_ERROR, 600))


class Webhook:
    """Posts alerts to a URL. With a key, `X-Probedeck-Signature` is `sha256=` and the HMAC of
    `X-Probedeck-Timestamp`, a dot and the body."""

    def __init__(self, host: ExportHost) -> None:
        options = host.config.options
        assert isinstance(options, WebhookOptions)
        self._post = HttpPost(host.config, options.ca, _LATER | _SERVER_FAILS)
        self._key = key_of(options.key) if options.key else b""

    def send(self, alert: Alert) -> None:
        body, headers = alert.json(), {"content-type": "application/json"}
        if self._key:
            now = str(int(time.time()))
            signed = hmac.new(self._key, f"{now}.".encode() + body, hashlib.sha256).hexdigest()
            headers |= {"x-probedeck-timestamp": now, "x-probedeck-signature": f"sha256={signed}"}
        self._post.send("", body, headers)

    def close(self) -> None:
        """No connection stays open."""


def key_of(path: str) -> bytes:
    """Return the key in a file. Raises UsageError if it is empty, or if others can read it."""
    key = secret_of("key", path)
    if not key:
        hint = "openssl rand -hex 16 makes one"
        raise UsageError(f"option key: {path}: it holds no key", hint=hint)
    return key


def webhook(host: ExportHost) -> AlertExporter:
    return AlertExporter(host, Webhook(host))


_TRIES = 3


class AlertCommand:
    """Runs a program for each alert; an exit code other than 0 is tried again, twice."""

    def __init__(self, host: ExportHost) -> None:
        options = host.config.options
        assert isinstance(options, CommandOptions)
        try:
            self._words = shlex.split(host.config.path)
        except ValueError as error:
            raise UsageError(f"the command is not readable: {error}") from None
        # A mistyped name shows now, not at the first alert.
        program = self._words[0] if self._words else ""
        if not shutil.which(program, path=environment_of(invoker())["PATH"]):
            raise UsageError(f"there is no program {program!r}", hint="give its whole path")
        self._seconds = options.timeout
        # Of the start: an account that is removed later must not give the program root's rights.
        self._who = invoker()
        self._tries = 0

    def send(self, alert: Alert) -> None:
        try:
            why = self._run(alert)
        except OSError as error:
            why = error.strerror or "it does not start"
        except KeyError:
            why = f"user {self._who.uid} has no account"
        except subprocess.SubprocessError:
            why = "it does not start"
        self._tries = self._tries + 1 if why else 0
        if why and self._tries >= _TRIES:
            self._tries = 0
            raise RejectedError(f"{self._words[0]}: {why}, {_TRIES} times", 1)
        if why:
            raise DeliveryError(f"{self._words[0]}: {why}")

    def _run(self, alert: Alert) -> str:
        """Return why the program failed; empty if it did not."""
        process = subprocess.Popen(
            self._words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True, env=environment_of(self._who),
            preexec_fn=die_with_parent, **rights_of(self._who),
        )  # fmt: skip
        try:
            process.communicate(alert.json(), self._seconds)
        except subprocess.TimeoutExpired:
            return f"killed after {self._seconds:g} s"
        finally:
            # Also the processes that it left behind.
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
        code = process.returncode
        return f"exit code {code}" if code > 0 else f"signal {-code}" if code else ""

    def close(self) -> None:
        """No program runs."""


def command(host: ExportHost) -> AlertExporter:
    return AlertExporter(host, AlertCommand(host))
