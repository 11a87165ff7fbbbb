"""A new kind of map is one row of `bpf.maps.kinds`: metrics, tables and entries use it."""

from __future__ import annotations

import socket

import pytest

from bpf.abi import MapType
from bpf.errors import UsageError
from bpf.maps.kinds import KINDS, MapKind, Shape
from probes.tables.conversion import TableKind
from tests.probes.conftest import compiler as compiler
from tests.probes.program.conftest import loose as loose
from tests.probes.program.tools import Loose, config, metric, snapshots, table

SOURCE = """\
BPF_DEVMAP(ports, 8);

int count(struct xdp_md *ctx)
{
    return ports.redirect_map(1, 0);
}
"""
"""Interfaces by the number of a port. A map that only the kernel reads, if it has no row."""
LOOPBACK = socket.if_nametoindex("lo")
CONFIG = config(
    SOURCE,
    metric("ports"),
    hook="xdp",
    maps={"ports": {"writable": True, "entries": [{"key": 1, "value": LOOPBACK}]}},
)


def test_without_a_row(loose: Loose) -> None:
    with pytest.raises(UsageError, match="ports is a devmap, whose contents mean nothing"):
        loose.add(CONFIG)


def test_one_row(loose: Loose, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, MapType.DEVMAP, MapKind(MapType.DEVMAP, Shape.HASH))
    probe = loose.add(CONFIG)
    probe.set_entry("ports", 7, LOOPBACK)
    exported = probe.export()
    assert table(exported, "ports") == {1: LOOPBACK, 7: LOOPBACK}
    (window,) = snapshots(exported)
    assert window.schema
    assert window.schema.kind == TableKind.HASH
    assert window.occupancy == 2 / 8
    assert probe.delete_entry("ports", 1)
    assert probe.entries("ports") == [{"key": 7, "value": LOOPBACK}]
