"""Maps of every kind, read by every routine, quiescent and while another thread writes them."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from bpf.abi import MapFlag, MapType
from bpf.cpus import possible_cpus
from bpf.errors import KernelError, UsageError
from bpf.maps import drain, readers
from bpf.maps import map as maps
from bpf.maps.map import Entries, Map, ReadMethod, reduce_cpus
from bpf.syscall import MapSpec

HASHES = (
    MapType.HASH,
    MapType.LRU_HASH,
    MapType.PERCPU_HASH,
    MapType.LRU_PERCPU_HASH,
)
ARRAYS = (MapType.ARRAY, MapType.PERCPU_ARRAY)
QUEUES = (MapType.QUEUE, MapType.STACK)
WALKING = (ReadMethod.DRAIN, ReadMethod.BATCH, ReadMethod.ITERATE)

KEY = np.dtype([("address", "u4"), ("port", "u1")])
"""5 bytes: no multiple of anything."""
VALUE = np.dtype([("packets", "u8"), ("flags", "u2"), ("ttl", "u1")])
"""11 bytes: per-CPU kinds pad it."""
PREFIX = np.dtype([("length", "u4"), ("address", "u4")])
U8 = np.dtype("u8")


def spec_of(kind: MapType, entries: int = 600, key: int = KEY.itemsize, value: int = 11) -> MapSpec:
    """The kind's spec; LRU kinds get enough room to evict no entry."""
    flags = 0
    if kind in ARRAYS:
        key = 4
    elif kind in QUEUES:
        key = 0
    elif kind == MapType.LPM_TRIE:
        key, flags = PREFIX.itemsize, int(MapFlag.NO_PREALLOC)
    elif kind in (MapType.LRU_HASH, MapType.LRU_PERCPU_HASH):
        entries = 4 * entries + 1024
    return MapSpec("test", kind, key, value, entries, flags)


def keys_of(kind: MapType, count: int) -> np.ndarray[Any, Any]:
    if kind in ARRAYS:
        return np.arange(count, dtype="u4")
    keys = np.zeros(count, PREFIX if kind == MapType.LPM_TRIE else KEY)
    keys["address"] = np.arange(count) << (20 if kind == MapType.LPM_TRIE else 0)
    if kind == MapType.LPM_TRIE:
        keys["length"] = 32
    return keys


def values_of(spec: MapSpec, count: int) -> np.ndarray[Any, Any]:
    """Different in every entry, on every CPU and in every field."""
    values = np.zeros((count, possible_cpus()) if spec.percpu else count, VALUE)
    numbers = np.arange(1, values.size + 1).reshape(values.shape)
    values["packets"] = numbers << 33
    values["flags"] = numbers
    values["ttl"] = numbers % 251
    return values


def contents(entries: Entries) -> dict[bytes, bytes]:
    found = {
        key.tobytes(): np.ascontiguousarray(value).tobytes()
        for key, value in zip(entries.keys, entries.values, strict=True)
    }
    assert len(found) == len(entries)
    return found


COMBINATIONS = [
    *itertools.product(HASHES, WALKING),
    *itertools.product(ARRAYS, WALKING),
    *itertools.product((MapType.LPM_TRIE,), (ReadMethod.BATCH, ReadMethod.ITERATE)),
]


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


@pytest.mark.parametrize("routine", [ReadMethod.DRAIN, ReadMethod.POP])
@pytest.mark.parametrize("kind", QUEUES)
def test_queues_and_stacks_come_in_their_order(kind: MapType, routine: ReadMethod) -> None:
    spec = spec_of(kind)
    values = values_of(spec, 500)
    with Map.create(spec, value=VALUE, routine=routine) as map_:
        map_.update(None, values)
        entries = map_.read()
        assert (entries.values == (values if kind == MapType.QUEUE else values[::-1])).all()
        assert (entries.keys == np.arange(500)).all()
        assert len(map_.read()) == 0


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
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KernelError, match=routine):
        Map.create(spec_of(kind), routine=routine)
    assert len(os.listdir("/proc/self/fd")) == opened


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


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, code: int, healthy_calls: int) -> Iterator[None]:
    """The kernel refuses once, after some calls, without having done anything."""
    calls = itertools.count()
    real: Callable[[Any, Any], int] = vars(readers)["call_errno"]

    def refusing(command: Any, attr: Any) -> int:
        return code if next(calls) == healthy_calls else real(command, attr)

    with monkeypatch.context() as patch:
        patch.setattr(readers, "call_errno", refusing)
        yield


@pytest.mark.parametrize(
    ("kind", "routine"),
    [
        (MapType.HASH, ReadMethod.BATCH),
        (MapType.PERCPU_HASH, ReadMethod.BATCH),
        (MapType.HASH, ReadMethod.ITERATE),
        (MapType.QUEUE, ReadMethod.POP),
    ],
)
def test_an_error_half_way_loses_nothing_that_was_taken_out(
    kind: MapType, routine: ReadMethod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "_FIRST_ROOM", 50)
    monkeypatch.setattr(readers, "_SLACK", 0)
    spec = spec_of(kind)
    keys = None if kind == MapType.QUEUE else keys_of(kind, 600)
    values = values_of(spec, 600)
    with Map.create(spec, KEY, VALUE, routine=routine) as map_:
        map_.update(keys, values)
        with failing(monkeypatch, errno.EFAULT, 3):
            first = map_.read(clear=True)
        assert 0 < len(first) < 600
        second = map_.read(clear=True)
        taken = np.concatenate([first.values, second.values])
        assert sorted(taken["packets"].ravel()) == sorted(values["packets"].ravel())
        map_.update(keys, values)
        if kind != MapType.QUEUE:
            with failing(monkeypatch, errno.EFAULT, 0), pytest.raises(OSError, match="Bad address"):
                map_.read()
        with failing(monkeypatch, errno.EFAULT, 0), pytest.raises(OSError, match="Bad address"):
            map_.read(clear=True)
        assert len(map_.read(clear=True)) == 600


def test_an_interrupted_batch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_FIRST_ROOM", 50)
    for code in (errno.EINTR, errno.EAGAIN):
        with Map.create(spec_of(MapType.HASH), KEY, VALUE, routine=ReadMethod.BATCH) as map_:
            map_.update(keys_of(MapType.HASH, 600), values_of(map_.spec, 600))
            for calls in (0, 2):
                with failing(monkeypatch, code, calls):
                    assert len(contents(map_.read())) == 600


@pytest.mark.parametrize("kind", [MapType.ARRAY, MapType.PERCPU_ARRAY, MapType.LPM_TRIE])
def test_a_refused_clearing_leaves_each_entry_in_one_place(
    kind: MapType, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(kind)
    keys, values = keys_of(kind, 600), values_of(spec, 600)
    with Map.create(spec, keys.dtype, VALUE, routine=ReadMethod.BATCH) as map_:
        map_.update(keys, values)
        # The lookup is done by then; the clearing is refused before its start.
        with failing(monkeypatch, errno.ENOMEM, 1):
            if kind == MapType.LPM_TRIE:
                with pytest.raises(OSError, match="Cannot allocate"):
                    map_.read(clear=True)
            else:
                assert not map_.read(clear=True).values["packets"].any()
        assert (np.sort(map_.read(clear=True).values, axis=0) == np.sort(values, axis=0)).all()


def test_an_output_that_cannot_grow_keeps_what_was_drained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain, "_FIRST_CAPACITY", 100)
    for kind in (MapType.HASH, MapType.QUEUE):
        spec = spec_of(kind)
        keys = None if kind == MapType.QUEUE else keys_of(kind, 600)
        values = values_of(spec, 600)
        with Map.create(spec, KEY, VALUE, routine=ReadMethod.DRAIN) as map_:
            map_.update(keys, values)
            real: Callable[[MapSpec], int] = vars(drain)["map_create"]
            with monkeypatch.context() as patch:
                patch.setattr(drain, "map_create", refuse_after(real, 1))
                first = map_.read(clear=True)
                assert len(first) == 100
            second = map_.read(clear=True)
            taken = np.concatenate([first.values, second.values])
            assert sorted(taken["packets"]) == sorted(values["packets"])


def refuse_after(real: Callable[[MapSpec], int], calls: int) -> Callable[[MapSpec], int]:
    made = itertools.count()

    def create(spec: MapSpec) -> int:
        if next(made) < calls:
            return real(spec)
        raise OSError(errno.ENOMEM, "no memory")

    return create


@contextmanager
def writing(work: Callable[[int], None]) -> Iterator[Callable[[], bool]]:
    """Another thread calls `work` with 0, 1, 2 ... until its StopIteration or the end of the block.

    Gives a function that tells whether it is still at work.
    """
    stop = threading.Event()

    def run() -> None:
        for step in itertools.count():
            if stop.is_set():
                return
            try:
                work(step)
            except StopIteration:
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield thread.is_alive
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("routine", WALKING)
@pytest.mark.parametrize("kind", [MapType.HASH, MapType.PERCPU_HASH])
def test_all_that_is_inserted_during_reads_is_taken_out_once(
    kind: MapType, routine: ReadMethod
) -> None:
    total, step = (10000, 10) if routine == ReadMethod.ITERATE else (60000, 250)
    spec = MapSpec("test", kind, 8, 8, total // 3)  # so that the writer has to wait for reads
    cpus = possible_cpus() if spec.percpu else 1
    with Map.create(spec, U8, U8, routine=routine) as map_, Map(os.dup(map_.fd), spec) as writer:

        def insert(number: int) -> None:
            if number * step >= total:
                raise StopIteration
            keys = np.arange(number * step, (number + 1) * step, dtype="u8")
            values = np.repeat(keys[:, None] + 1, cpus, axis=1)
            while True:
                try:
                    writer.update(keys.view("V8"), values.view("V8"))
                    return
                except OSError as full:
                    # Earlier values may have been taken out already, so add only the others.
                    done = int(str(full).split("after ")[1].split()[0])
                    keys, values = keys[done:], values[done:]

        taken: list[Entries] = []
        with writing(insert) as at_work:
            while at_work():
                taken.append(map_.read(clear=True))
        taken.append(map_.read(clear=True))
        assert sum(len(entries) > 0 for entries in taken) > 1
        assert (np.sort(np.concatenate([e.keys for e in taken])) == np.arange(total)).all()
        for entries in taken:
            assert (entries.keys + 1 == entries.values.reshape(len(entries), cpus).T).all()


@pytest.mark.parametrize("routine", [ReadMethod.DRAIN, ReadMethod.POP])
def test_all_that_is_pushed_during_reads_is_popped_in_order(routine: ReadMethod) -> None:
    spec = MapSpec("test", MapType.QUEUE, 0, 8, 100000)
    with Map.create(spec, value=U8, routine=routine) as map_, Map(os.dup(map_.fd), spec) as writer:

        def push(number: int) -> None:
            if number == 20000:
                raise StopIteration
            writer.update(None, np.array([number], "u8").view("V8"))

        taken = []
        with writing(push) as at_work:
            while at_work():
                taken.append(map_.read().values)
        taken.append(map_.read().values)
        assert (np.concatenate(taken) == np.arange(20000)).all()


@pytest.mark.parametrize(
    ("kind", "routine"),
    [
        (MapType.HASH, ReadMethod.ITERATE),
        (MapType.LRU_HASH, ReadMethod.DRAIN),
        (MapType.LPM_TRIE, ReadMethod.BATCH),
    ],
)
def test_a_key_that_moves_while_it_is_read_comes_once(kind: MapType, routine: ReadMethod) -> None:
    spec = spec_of(kind, entries=1000, value=8)
    keys = keys_of(kind, 900)
    with Map.create(spec, keys.dtype, U8, routine=routine) as map_:
        map_.update(keys, np.arange(900))
        with Map(os.dup(map_.fd), spec, keys.dtype, U8) as writer:

            def move(number: int) -> None:
                picked = keys[number % 90 :: 90]
                for key in picked:
                    writer.delete(key)
                writer.update(picked, np.full(len(picked), number))

            with writing(move):
                for _ in range(30):
                    entries = map_.read()
                    assert 800 < len(entries) <= 900
                    contents(entries)


def test_values_of_cpus_are_reduced_field_by_field() -> None:
    inner = np.dtype([("max", "u4"), ("marks", "u2", (2,))])
    dtype = np.dtype([("packets", "u8"), ("inner", inner), ("sizes", "i4", (3,))])
    values = np.zeros((5, 4), dtype)
    values["packets"] = np.arange(20).reshape(5, 4)
    values["inner"]["max"] = np.arange(20).reshape(5, 4)
    values["inner"]["marks"] = 3
    values["sizes"] = -1
    total = reduce_cpus(values)
    assert total.dtype == dtype
    assert total.shape == (5,)
    assert total["packets"].tolist() == [6, 22, 38, 54, 70]
    assert (total["inner"]["marks"] == 12).all()
    assert (total["sizes"] == -4).all()
    assert reduce_cpus(values, np.maximum)["inner"]["max"].tolist() == [3, 7, 11, 15, 19]
    assert reduce_cpus(np.full((2, 3), 7, "u4")).tolist() == [21, 21]
    assert reduce_cpus(np.full((2, 3), 7, "u4")).dtype == "u4"


def test_per_cpu_counters_of_a_map_are_summed() -> None:
    spec = spec_of(MapType.PERCPU_HASH)
    values = values_of(spec, 100)
    with Map.create(spec, KEY, VALUE) as map_:
        map_.update(keys_of(spec.type, 100), values)
        total = reduce_cpus(map_.read().values)
    assert sorted(total["packets"]) == sorted(values["packets"].sum(axis=1))
