"""Writes an initial RAM disk (cpio, "newc") that holds a whole guest for `.ci/kernels`.

    guest.py [ROOT]... <PATHS >IMAGE

PATHS are files and folders, one a line. A folder stands for all of its files. Each file has the
path and the time that it has here, so stored bytecode is valid, and brings the libraries and the
targets of links that it needs. All files of a ROOT stand at the top of the guest's files.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_LEFT_OUT = re.compile(
    r"/(config-3[^/]*|tests?(?=/python|/lib)|idlelib|lib2to3|pydoc_data|ensurepip|tkinter)$"
    r"|/site-packages/(_?duckdb|\w+__mypyc|mypy|scapy|pip|schemathesis|jsonschema_rs|setuptools"
    r"|virtme|pkg_resources|grimp|yaml|ruff|hypothesis|textual|resvg_py|clang_format)[^/]*$"
)
_MERGED = ("bin", "lib", "lib64", "sbin")
"""Links of a root folder without its package base-files."""


class Image:
    """A RAM disk that is being written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._known: set[str] = {"/"}

    def add(self, path: str, root: str = "") -> Iterator[str]:
        """Add a path with its folders, links and their targets; yield the files."""
        above = "/"
        parts = [part for part in path.split("/") if part]
        for at, part in enumerate(parts, 1):
            here = os.path.normpath(f"{above}/{part}")
            found = root + here
            if os.path.islink(found):
                target = os.readlink(found)
                self._write(here, found, target.encode())
                yield from self.add(os.path.join(above, target, *parts[at:]), root)
                return
            if os.path.isdir(found):
                self._write(here, found)
            above = here
        if os.path.isfile(found) and above not in self._known:
            with open(found, "rb") as file:
                self._write(above, found, file.read())
            yield above

    def _write(self, path: str, found: str, content: bytes = b"") -> None:
        if path in self._known:
            return
        self._known.add(path)
        state = os.lstat(found)
        self._entry(path, state.st_mode, int(state.st_mtime), content)

    def _entry(self, path: str, mode: int, mtime: int, content: bytes) -> None:
        name = path.lstrip("/").encode() + b"\0"
        fields = (len(self._known), mode, 0, 0, 1, mtime, len(content), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
        for part in (head, content):
            self._file.write(part.ljust(-(-len(part) // 4) * 4, b"\0"))

    def close(self) -> None:
        """Write the end."""
        self._entry("TRAILER!!!", 0, 0, b"")


def listed(path: str) -> Iterator[str]:
    """The files of a folder, or the file."""
    if not os.path.isdir(path):
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = [f for f in folders if not _LEFT_OUT.search(f"{folder}/{f}")]
        links = [f for f in folders if os.path.islink(f"{folder}/{f}")]
        yield from (f"{folder}/{f}" for f in files + links if not _LEFT_OUT.search(f"{folder}/{f}"))


def libraries(files: list[str]) -> list[str]:
    """The libraries that programs and libraries need."""
    binary = [file for file in files if ".so" in file or "/bin/" in file]
    shown = subprocess.run(["ldd", *binary], capture_output=True, text=True, check=False)
    return sorted(set(re.findall(r"(/\S+) \(0x", shown.stdout)))


def main(image: Image, roots: list[str]) -> None:
    files = [f for line in sys.stdin for path in listed(line.strip()) for f in image.add(path)]
    for library in libraries(files):
        list(image.add(library))
    for root in roots:
        for path in listed(root):
            list(image.add(path.removeprefix(root), root))
    image.close()


if __name__ == "__main__":
    main(Image(sys.stdout.buffer), [str(Path(root)) for root in sys.argv[1:]])
