"""Unpack wheels into a folder.

unpack.py FOLDER WHEEL...
"""

from __future__ import annotations

import sys
from zipfile import ZipFile


def main(folder: str, *wheels: str) -> None:
    for wheel in wheels:
        with ZipFile(wheel) as files:
            files.extractall(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
