"""Maps that are read while another thread writes them."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from bpf.abi import MapType
from bpf.machine import possible_cpus
from bpf.maps.map import Entries, Map, ReadMethod
from bpf.syscall import MapSpec
from tests.bpf.maps.entries import U8, WALKING, contents, keys_of, spec_of


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
