"""Maps of every kind, read and emptied by every method while nobody writes them."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from bpf.abi import MapFlag, MapType
from bpf.errors import KernelError, UsageError
from bpf.maps import drain, readers
from bpf.maps import map as maps
from bpf.maps.map import Entries, Map, ReadMethod
from bpf.syscall import MapSpec
from tests.bpf.maps.entries import (
    ARRAYS,
    COMBINATIONS,
    HASHES,
    KEY,
    QUEUES,
    U8,
    VALUE,
    WALKING,
    contents,
    keys_of,
    spec_of,
    values_of,
)
from tests.support.descriptors import open_fds


@pytest.mark.parametrize(("kind", "routine"), COMBINATIONS)
def test_every_routine_reads_and_takes_out_what_was_stored(
    kind: MapType, routine: ReadMethod
) -> None:
    spec = spec_of(kind)
    keys, values = keys_of(kind, 600), values_of(spec, 600)
    with Map.create(spec, keys.dtype, VALUE, routine=routine) as map_:
        map_.update(keys, values)
        stored = contents(Entries(keys, values))
        for clear in (False, True):
            entries = map_.read(clear=clear)
            assert contents(entries) == stored
            assert entries.keys.dtype == keys.dtype
            assert entries.values.dtype == VALUE
            assert entries.values.shape == values.shape
        left = map_.read()
        if kind in ARRAYS:
            assert len(left) == 600
            assert not left.values["packets"].any()
            assert not left.values["ttl"].any()
        else:
            assert len(left) == 0
            assert left.values.shape[1:] == values.shape[1:]


@pytest.mark.parametrize("routine", [ReadMethod.MMAP, *WALKING])
@pytest.mark.parametrize("size", [3, 8, 11])
def test_an_mmapable_array_is_read_by_every_routine(routine: ReadMethod, size: int) -> None:
    spec = MapSpec("test", MapType.ARRAY, 4, size, 100, MapFlag.MMAPABLE)
    values = np.frombuffer(np.random.default_rng(1).bytes(100 * size), f"V{size}")
    with Map.create(spec, routine=routine) as map_:
        map_.update(np.arange(100), values)
        assert map_.read(clear=True).values.tobytes() == values.tobytes()
        assert not any(map_.read().values.tobytes())


@pytest.mark.parametrize(
    ("kind", "flags", "routine"),
    [
        (MapType.ARRAY, MapFlag.MMAPABLE, ReadMethod.MMAP),
        (MapType.ARRAY, 0, ReadMethod.DRAIN),
        (MapType.PERCPU_ARRAY, 0, ReadMethod.DRAIN),
        *((kind, 0, ReadMethod.DRAIN) for kind in HASHES),
        (MapType.LPM_TRIE, MapFlag.NO_PREALLOC, ReadMethod.BATCH),
        (MapType.QUEUE, 0, ReadMethod.DRAIN),
        (MapType.STACK, 0, ReadMethod.DRAIN),
    ],
)
def test_the_fastest_routine_is_found_without_touching_the_map(
    kind: MapType, flags: int, routine: ReadMethod
) -> None:
    spec = spec_of(kind)
    spec = MapSpec("test", kind, spec.key_size, 11, spec.max_entries, flags)
    keys = None if kind in QUEUES else keys_of(kind, 9)
    with Map.create(spec, None if keys is None else keys.dtype, VALUE) as map_:
        assert map_.routine == routine
        map_.update(keys, values_of(spec, 9))
        with Map(os.dup(map_.fd), spec, map_.key, VALUE) as again:
            assert np.count_nonzero(again.read().values["ttl"]) == values_of(spec, 9).size


def test_without_drain_and_batch_the_next_routine_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain.Drain, "supports", lambda fd, spec: False)
    with Map.create(spec_of(MapType.HASH), KEY, VALUE) as map_:
        assert map_.routine == ReadMethod.BATCH
    with Map.create(spec_of(MapType.QUEUE), value=VALUE) as map_:
        assert map_.routine == ReadMethod.POP
    monkeypatch.setattr(readers, "has_batch", lambda fd, command: False)
    monkeypatch.setattr(maps, "has_batch", lambda fd, command: False)
    with Map.create(spec_of(MapType.HASH), KEY, VALUE) as map_:
        assert map_.routine == ReadMethod.ITERATE
        map_.update(keys_of(MapType.HASH, 5), values_of(map_.spec, 5))
        assert len(map_.read()) == 5


@pytest.mark.parametrize(
    ("kind", "routine"),
    [
        (MapType.QUEUE, ReadMethod.BATCH),
        (MapType.STACK, ReadMethod.ITERATE),
        (MapType.LPM_TRIE, ReadMethod.DRAIN),
        (MapType.HASH, ReadMethod.MMAP),
        (MapType.HASH, ReadMethod.POP),
    ],
)
def test_a_routine_that_cannot_work_is_refused_and_leaks_nothing(
    kind: MapType, routine: ReadMethod
) -> None:
    opened = open_fds()
    with pytest.raises(KernelError, match=routine):
        Map.create(spec_of(kind), routine=routine)
    assert open_fds() <= opened


def test_a_layout_of_another_size_is_refused() -> None:
    spec = spec_of(MapType.HASH)
    with pytest.raises(UsageError, match="its value is described with 8 bytes, but has 11"):
        Map.create(spec, KEY, U8)
    with pytest.raises(UsageError, match="its key is described with 8 bytes, but has 5"):
        Map.create(spec, U8, VALUE)


def test_the_view_is_the_kernels_memory_and_outlives_the_map() -> None:
    spec = MapSpec("test", MapType.ARRAY, 4, 11, 10, MapFlag.MMAPABLE)
    with Map.create(spec, value=VALUE) as map_:
        view = map_.view()
        assert view.shape == (10,)
        view["packets"][3] = 7
        found = map_.lookup(3)
        assert found is not None
        assert found["packets"] == 7
        entries = map_.read(clear=True)
        assert entries.values["packets"][3] == 7
        assert not view["packets"].any()
    view["packets"][3] = 8
    assert view["packets"][3] == 8
    with Map.create(spec_of(MapType.HASH)) as map_, pytest.raises(UsageError, match="mmapable"):
        map_.view()


def test_single_entries_are_looked_up_and_deleted() -> None:
    for kind in (MapType.HASH, MapType.PERCPU_HASH):
        spec = spec_of(kind)
        values = values_of(spec, 3)
        with Map.create(spec, KEY, VALUE) as map_:
            map_.update(keys_of(kind, 3), values)
            found = map_.lookup((1, 0))
            assert found is not None
            assert (found == values[1]).all()
            assert map_.delete((1, 0))
            assert not map_.delete((1, 0))
            assert map_.lookup((1, 0)) is None
            assert len(map_.read()) == 2
            map_.clear()
            assert len(map_.read()) == 0


@pytest.mark.parametrize(("kind", "routine"), COMBINATIONS)
def test_every_routine_empties_a_map_without_reading_it(
    kind: MapType, routine: ReadMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1.18."""
    spec = spec_of(kind)
    with Map.create(spec, keys_of(kind, 1).dtype, VALUE, routine=routine) as map_:
        map_.update(keys_of(kind, 600), values_of(spec, 600))
        with monkeypatch.context() as patch:
            refuse = pytest.fail
            patch.setattr(readers, "map_lookup", lambda *_: refuse("an entry is read"))
            patch.setattr(readers.Batched, "_look_up", lambda *_: refuse("a batch is read"))
            patch.setattr(drain, "_Output", lambda *_: refuse("the map is copied"))
            if routine == ReadMethod.BATCH:
                patch.setattr(readers, "map_delete", lambda *_: refuse("a call for each entry"))
            map_.clear()
        left = map_.read()
        assert len(left) == (600 if kind in ARRAYS else 0)
        assert not left.values["packets"].any()
        map_.clear()
        map_.update(keys_of(kind, 600), values_of(spec, 600))
        assert len(map_.read()) == 600


def test_padding_in_a_key_does_not_hide_its_entry() -> None:
    padded = np.dtype([("port", "u1"), ("address", "u4")], align=True)
    ones = 2**64 - 1
    with Map.create(MapSpec("test", MapType.HASH, 8, 8, 4), padded, U8) as map_:
        # numpy gives the bytes of freed arrays to the next ones of the same size.
        dirt = [np.full(1, ones, "u8") for _ in range(7)]
        del dirt
        map_.update([(1, 2)], [ones])
        assert map_.read().keys.tobytes() == b"\x01\0\0\0\x02\0\0\0"
        assert map_.lookup((1, 2)) == ones
        dirty = np.frombuffer(b"\x01\xff\xff\xff\x02\0\0\0", padded)
        assert map_.lookup(dirty[0]) is None
        map_.update(dirty, [8])
        found = [map_.lookup(key) for key in map_.read().keys]
        assert sorted(int(value) for value in found if value is not None) == [8, ones]


def test_a_full_map_tells_how_many_entries_were_stored() -> None:
    for kind in (MapType.HASH, MapType.QUEUE):
        spec = spec_of(kind, entries=10)
        keys = None if kind == MapType.QUEUE else keys_of(kind, 12)
        with Map.create(spec, KEY, VALUE) as map_:
            with pytest.raises(OSError, match="after 10") as refusal:
                map_.update(keys, values_of(spec, 12))
            assert refusal.value.errno == errno.E2BIG
            assert len(map_.read()) == 10


def test_buckets_that_do_not_fit_the_buffer_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_FIRST_ROOM", 1)
    monkeypatch.setattr(readers, "_SLACK", 0)
    refused: list[bool] = []

    def watching(command: Any, attr: Any) -> int:
        code = real(command, attr)
        refused.append(code == errno.ENOSPC)
        return code

    real: Callable[[Any, Any], int] = vars(readers)["call_errno"]
    monkeypatch.setattr(readers, "call_errno", watching)
    for kind in HASHES:
        spec = spec_of(kind)
        for clear in (False, True):
            with Map.create(spec, KEY, VALUE, routine=ReadMethod.BATCH) as map_:
                map_.update(keys_of(kind, 600), values_of(spec, 600))
                assert len(contents(map_.read(clear=clear))) == 600
                assert len(map_.read()) == (0 if clear else 600)
    assert any(refused)


LONG_KEYS = """
import numpy as np
from bpf.maps import readers
from bpf.maps.map import Map, ReadMethod
from bpf.abi import (MapFlag, MapType)
from bpf.syscall import (MapSpec)

readers._FIRST_ROOM = 10
spec = MapSpec("test", MapType.LPM_TRIE, 260, 8, 100, MapFlag.NO_PREALLOC)
key = np.dtype([("length", "u4"), ("data", "u1", (256,))])
keys = np.zeros(100, key)
keys["length"] = 2048
keys["data"][:, 200] = np.arange(100)
with Map.create(spec, key, np.dtype("u8"), routine=ReadMethod.BATCH) as map_:
    map_.update(keys, np.arange(100))
    print(sorted(map_.read(clear=True).values.tolist()) == list(range(100)), len(map_.read()))
"""


def test_the_place_in_a_trie_of_long_keys_has_room() -> None:
    # Python's debugging allocator ends the process at a write past the end of an object.
    environment = os.environ | {"PYTHONMALLOC": "debug"}
    child = subprocess.run(
        [sys.executable, "-c", LONG_KEYS], env=environment, capture_output=True, text=True
    )
    assert child.stdout == "True 0\n", child.stderr
