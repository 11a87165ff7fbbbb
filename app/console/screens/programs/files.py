"""Files of screen 5: written sources, and the user's editor."""

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
    """Return `text` as the user's editor leaves it; the editor has the terminal meanwhile.

    Raises ProbedeckError if no editor starts, if it fails, or if its file is unreadable.
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
