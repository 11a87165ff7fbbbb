"""Keys of a configuration about its source: headers of a C file, and features of NetFlow."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, model_validator

from bpf.compiler.source import INCLUDE_SYSTEM, included
from bpf.errors import UsageError
from probes.config.config_errors import invalid
from probes.config.files import read_text
from probes.config.map_config import Model
from probes.netflow import generator as netflow
from probes.netflow.generator import FEATURES, Method

KERNEL_TYPES = "vmlinux.h"
"""Made of the running kernel's types: a file of this name is another kernel's, and too long."""
MAX_HEADERS = 1 << 20
"""Bytes of all headers of one source."""
NAME = re.compile(r"(?:\.\./)*[\w.+-]+(?:/[\w.+-]+)*")
"""A path relative to the source's directory. It is the file's name in diagnostics."""


@dataclass(frozen=True, slots=True)
class HeaderSearch:
    """Where the headers of a C file may be."""

    file: Path
    root: Path
    """Directory of the configuration, or of the file: headers outside are left out."""
    include: tuple[Path, ...] = ()
    """Directories that are searched after the file's own."""

    def read(self, source: str, where: str) -> dict[str, str]:
        """Return the headers that `source`, the text of the file, includes by `#include "..."`.

        Headers of `#include <...>` are searched in `include` only. Keys are paths relative to the
        file's directory, or to one of `include`. Headers may include others. Files outside of the
        directories are left out, also behind symbolic links: root compiles them, somebody else may
        own them, and diagnostics quote them.
        Raises UsageError, which begins with `where`, for a header without text, or for too many
        bytes.
        """
        found: dict[str, str] = {}
        size = 0
        waiting = [("", source)]
        while waiting:
            including, text = waiting.pop()
            quoted = (self._existing(name, including) for name in included(text))
            system = (self._existing(name, "", 1) for name in included(text, INCLUDE_SYSTEM))
            for existing in (*quoted, *system):
                header, path = next(existing, ("", self.file))
                if not header or header in found or header == KERNEL_TYPES:
                    continue
                found[header] = read_text(path, MAX_HEADERS, f"{where}: {path}")
                size += len(found[header])
                if size > MAX_HEADERS:
                    raise UsageError(f"{where}: the headers have more than {MAX_HEADERS >> 20} MiB")
                waiting.append((header, found[header]))
        return found

    def path(self, header: str) -> Path:
        """Return the file of a header that `read` found."""
        return next((path for _, path in self._existing(header, "")), self.file.parent / header)

    def _existing(self, name: str, including: str, first: int = 0) -> Iterator[tuple[str, Path]]:
        """Yield the headers that exist where `bpf.compiler.source.find_header` looks for one.

        `first` is the first directory: 0 is the file's own; then `include` follows.
        """
        folders = [(self.file.parent, self.root), *((each, each) for each in self.include)]
        for path in (posixpath.join(posixpath.dirname(including), name), name):
            header = posixpath.normpath(path)
            for folder, root in folders[first:] if NAME.fullmatch(header) else ():
                file = folder / header
                file = file.resolve() if header.startswith("../") else file
                if file.is_file() and file.resolve().is_relative_to(root.resolve()):
                    yield header, file


def _listed(features: Any) -> Any:
    """Expand a number n to the first n features."""
    if features == [] or features == ():
        raise invalid("must not be empty")
    if not isinstance(features, int) or isinstance(features, bool):
        return features
    if not 1 <= features <= len(FEATURES):
        raise invalid(f"must be a list of names, or 1 to {len(FEATURES)}, not {features}")
    return FEATURES[:features]


class NetflowFeatures(Model):
    """NetFlow v9 features 1 to 15, in place of a source (S1.30)."""

    features: Annotated[
        tuple[netflow.Feature, ...],
        BeforeValidator(_listed, json_schema_input_type=int | tuple[netflow.Feature, ...]),
    ] = FEATURES
    """Their names in any order, or how many of the first ones."""
    method: Method = Method.FULLY_ADAPTIVE
    """See `probes.netflow.generator.Method`."""

    @model_validator(mode="after")
    def _chooses(self) -> Self:
        if self.method is Method.NON_ADAPTIVE and set(self.features) != set(FEATURES):
            hint = "leave features out, or take another method"
            raise invalid("the non-adaptive method always has all", at="features", hint=hint)
        return self
