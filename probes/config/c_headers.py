"""Headers beside the C file of a probe; their text becomes part of the configuration."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from bpf.compiler.source import included
from bpf.errors import UsageError
from probes.config.files import read_text

MAX_HEADERS = 1 << 20
"""Bytes of all headers of one source."""
NAME = re.compile(r"[\w.+-]+(?:/[\w.+-]+)*")
"""A path relative to the source's directory. It is the file's name in diagnostics."""


def headers_beside(source: str, file: Path, where: str) -> dict[str, str]:
    """Return the headers that `source`, the text of `file`, includes by `#include "..."`.

    Keys are paths relative to the file's directory. Headers may include others. Files outside of
    that directory are left out, also behind symbolic links: root compiles them, somebody else may
    own them, and diagnostics quote them.
    Raises UsageError, which begins with `where`, for a header without text, or for too many bytes.
    """
    found: dict[str, str] = {}
    size = 0
    waiting = [("", source)]
    while waiting:
        including, text = waiting.pop()
        for name in included(text):
            header = next((h for h in _candidates(name, including) if _is_inside(file, h)), "")
            if not header or header in found:
                continue
            path = file.parent / header
            found[header] = read_text(path, MAX_HEADERS, f"{where}: {path}")
            size += len(found[header])
            if size > MAX_HEADERS:
                raise UsageError(f"{where}: the headers have more than {MAX_HEADERS >> 20} MiB")
            waiting.append((header, found[header]))
    return found


def _candidates(name: str, including: str) -> Iterator[str]:
    """Yield the paths where `bpf.compiler.source.find_header` looks for a header."""
    for path in (posixpath.join(posixpath.dirname(including), name), name):
        normal = posixpath.normpath(path)
        if NAME.fullmatch(normal) and not normal.startswith(".."):
            yield normal


def _is_inside(file: Path, header: str) -> bool:
    path = file.parent / header
    return path.is_file() and path.resolve().is_relative_to(file.parent.resolve())
