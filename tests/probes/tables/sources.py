"""A reader of maps, and tables whose maps a test fills byte by byte."""

from __future__ import annotations

import json
from typing import Any

from bpf.abi import ProgType
from bpf.compiler import Compiled, Compiler
from bpf.maps.map import Map
from bpf.syscall import map_update
from probes.tables.conversion import columns, flat_rows, objects, schema_of
from probes.tables.map_layout import rows_of

PROGRAM = "int program(struct xdp_md *ctx) { return XDP_PASS; }\n"


class Read:
    """A map's entries, as a reader gets them."""

    def __init__(self, compiled: Compiled, name: str, **types: Any) -> None:
        found = compiled.maps[name]
        self.schema = schema_of(found, **types)
        self._found = found
        self.map = Map.create(found.spec, found.key, found.value)

    def put(self, key: bytes | None, value: bytes) -> None:
        """Store an entry, byte for byte; a per-CPU map's value has every CPU's part."""
        map_update(self.map.fd, key, value)

    def rows(self, agg: str = "") -> Any:
        return rows_of(self.map.read(), agg)

    def objects(self) -> list[dict[str, Any]]:
        found = list(objects(self.schema, self.rows()))
        json.dumps(found)  # Python's own values
        return found

    def flat(self) -> list[dict[str, Any]]:
        rows = self.rows()
        names = columns(self.schema, rows.dtype)
        assert len(set(names)) == len(names)
        return [dict(zip(names, row, strict=True)) for row in flat_rows(self.schema, rows)]


class Sources:
    """Compiles sources, and opens maps of them."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._open: list[Any] = []

    def read(self, source: str, name: str = "m", **types: Any) -> Read:
        compiled = self._compiler.compile(source + PROGRAM, ProgType.XDP)
        self._open.append(compiled)
        read = Read(compiled, name, **types)
        self._open.append(read.map)
        return read

    def close(self) -> None:
        for each in self._open:
            each.close()
