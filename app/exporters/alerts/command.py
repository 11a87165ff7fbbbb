"""Alerts to a program: JSON on its standard input, with the rights of the user."""

from __future__ import annotations

import ctypes
import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress

from app.exporters.alerts.alert import Alert
from app.exporters.alerts.exporter import AlertExporter
from app.exporters.alerts.options import CommandOptions
from app.exporters.exporter import DeliveryError, RejectedError
from app.exporters.host import ExportHost
from app.files import environment_of, invoker, rights_of
from bpf.errors import UsageError

_TRIES = 3
_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl


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
            preexec_fn=_die_with_parent, **rights_of(self._who),
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


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def command(host: ExportHost) -> AlertExporter:
    return AlertExporter(host, AlertCommand(host))
