"""What screen 5 has to do with files: sources written, and another editor."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from bpf.errors import DeckError


def write_source(path: Path, text: str) -> None:
    """Write all of it or leave what is there; the mode of a file that is replaced is kept."""
    path = path.expanduser()
    temporary = ""
    try:
        target = path.resolve()
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o644
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, target)
    except (OSError, ValueError) as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise DeckError(f"{path} is not written: {words}") from None


def edit_outside(name: str, text: str) -> str:
    """What the operator's editor makes of `text`; the terminal must be its own meanwhile.

    Raises DeckError where there is no such editor, or it failed, or left something unreadable.
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
            raise DeckError(f"{command} failed ({error.returncode}); nothing is changed") from None
        except (OSError, ValueError) as error:
            raise DeckError(f"{command}: {error}", hint="set EDITOR to an editor") from None
