"""What screen 5 has to do with files: sources written, and another editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from app.files import write_atomic
from bpf.errors import ProbedeckError


def write_source(path: Path, text: str) -> None:
    """Replace a file by a source, all or nothing. Raises ProbedeckError."""
    try:
        write_atomic(path, [text.encode()])
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise ProbedeckError(f"{path} is not written: {words}") from None


def edit_outside(name: str, text: str) -> str:
    """What the operator's editor makes of `text`; the terminal must be its own meanwhile.

    Raises ProbedeckError where there is no such editor, or it failed, or left something unreadable.
    """
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="probedeck-") as directory:
        path = Path(directory, name)
        path.write_text(text, encoding="utf-8", newline="")
        try:
            subprocess.run([*shlex.split(command), str(path)], check=True)
            with path.open(encoding="utf-8", newline="") as file:
                return file.read()
        except subprocess.CalledProcessError as error:
            raise ProbedeckError(
                f"{command} failed ({error.returncode}); nothing is changed"
            ) from None
        except (OSError, ValueError) as error:
            raise ProbedeckError(f"{command}: {error}", hint="set EDITOR to an editor") from None
