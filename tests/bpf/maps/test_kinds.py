"""Kinds of maps: the table covers every kind, and the kernel's own answers agree with it."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from bpf.abi import BpfCommand, MapFlag, MapType
from bpf.maps.kinds import KINDS, Shape
from bpf.maps.readers import has_batch
from bpf.syscall import MapSpec, map_create

READABLE = [kind.type for kind in KINDS.values() if kind.shape and not kind.records]
"""All but rings, which have a size in bytes and no entries for the kernel."""


def made(type_: MapType) -> MapSpec:
    kind = KINDS[type_]
    flags = MapFlag.NO_PREALLOC if kind.shape == Shape.LPM else 0
    return MapSpec("m", type_, 0 if kind.is_queue else 8 - 4 * kind.numbered, 8, 4, flags)


def test_every_kind_has_a_row() -> None:
    assert KINDS.keys() == set(MapType)
    assert {kind.type for kind in KINDS.values() if kind.expires} == {
        MapType.HASH, MapType.LRU_HASH,
    }  # fmt: skip


@pytest.mark.parametrize("type_", READABLE)
def test_the_kernel_clears_by_the_batch_command_of_the_row(type_: MapType) -> None:
    fd = map_create(made(type_))
    try:
        clearing = KINDS[type_].clearing
        assert clearing is None or has_batch(fd, clearing)
        if KINDS[type_].is_queue:
            assert not has_batch(fd, BpfCommand.MAP_LOOKUP_BATCH)
    finally:
        os.close(fd)


def test_only_the_kind_that_says_so_can_be_mapped() -> None:
    for type_ in READABLE:
        spec = made(type_)
        try:
            os.close(map_create(replace(spec, flags=spec.flags | MapFlag.MMAPABLE)))
        except OSError:
            assert not KINDS[type_].mmap
        else:
            assert KINDS[type_].mmap
