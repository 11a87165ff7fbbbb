"""The in-kernel drain: sizes, growth, and entries left in the map."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from bpf.abi import MapType
from bpf.machine import possible_cpus
from bpf.maps import drain
from bpf.maps.drain import Drain
from bpf.maps.map import Map, ReadMethod
from bpf.syscall import MapSpec
from tests.support.descriptors import open_fds


@contextmanager
def drained(spec: MapSpec) -> Iterator[Map]:
    with Map.create(spec, routine=ReadMethod.DRAIN) as map_:
        yield map_


def noise(count: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    """`count` different values of `size` bytes."""
    content = np.frombuffer(np.random.default_rng(3).bytes(count * size), "u1").copy()
    content.reshape(count, size)[:, 0] = np.arange(count)
    return content.view(f"V{size}")


@pytest.mark.parametrize("value_size", [1, 2, 3, 5, 8, 12, 63, 64, 511, 512])
@pytest.mark.parametrize("key_size", [1, 3, 4, 6, 7, 8, 13, 40, 61])
def test_keys_and_values_of_any_size_come_byte_for_byte(key_size: int, value_size: int) -> None:
    keys, values = noise(40, key_size), noise(40, value_size)
    with drained(MapSpec("test", MapType.HASH, key_size, value_size, 40)) as map_:
        map_.update(keys, values)
        found = map_.read(clear=True)
        assert dict(zip(found.keys.tolist(), found.values.tolist(), strict=True)) == dict(
            zip(keys.tolist(), values.tolist(), strict=True)
        )
        assert len(map_.read()) == 0


@pytest.mark.parametrize("kind", [MapType.PERCPU_HASH, MapType.PERCPU_ARRAY])
@pytest.mark.parametrize("value_size", [1, 4, 8, 13, 200])
def test_each_cpus_value_comes_in_its_place(kind: MapType, value_size: int) -> None:
    spec = MapSpec("test", kind, 4, value_size, 50)
    values = noise(50 * possible_cpus(), value_size).reshape(50, -1)
    with drained(spec) as map_:
        map_.update(np.arange(50, dtype="u4").view(map_.key), values)
        found = map_.read()
        order = found.keys.view("u4")
        assert (found.values == values[order]).all()


@pytest.mark.parametrize("kind", [MapType.HASH, MapType.QUEUE])
@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("held", [99, 100, 101, 800, 801, 3000])
def test_the_output_grows_until_the_whole_map_fits(
    kind: MapType, clear: bool, held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "_FIRST_CAPACITY", 100)
    keyless = kind == MapType.QUEUE
    with drained(MapSpec("test", kind, 0 if keyless else 4, 8, 3000)) as map_:
        values = np.arange(held, dtype="u8").view("V8")
        map_.update(None if keyless else np.arange(held, dtype="u4").view("V4"), values)
        assert sorted(map_.read(clear=clear).values.view("u8")) == list(range(held))
        assert len(map_.read(clear=True)) == (0 if clear or keyless else held)


def test_a_later_read_shows_nothing_of_an_earlier_one() -> None:
    with drained(MapSpec("test", MapType.PERCPU_HASH, 4, 8, 100)) as map_:
        full = np.full((100, possible_cpus()), 7, "u8").view("V8")
        map_.update(np.arange(100, dtype="u4").view("V4"), full)
        first = map_.read(clear=True)
        map_.update(np.arange(3, dtype="u4").view("V4"), np.zeros_like(full[:3]))
        second = map_.read()
        assert len(second) == 3
        assert not second.values.view("u8").any()
        assert (first.values.view("u8") == 7).all()


@pytest.mark.parametrize(
    ("spec", "supported"),
    [
        (MapSpec("test", MapType.HASH, 8, 512, 10), True),
        (MapSpec("long value", MapType.HASH, 8, 513, 10), False),
        (MapSpec("large output", MapType.HASH, 8, 512, 1 << 20), False),
        (MapSpec("no walk", MapType.LPM_TRIE, 8, 8, 10, 1), False),
        (MapSpec("no values", MapType.RINGBUF, 0, 0, 4096), False),
        (MapSpec("wrong flags", MapType.HASH, 8, 8, 10, 1 << 30), False),
    ],
)
def test_maps_that_are_better_read_otherwise_are_left(spec: MapSpec, supported: bool) -> None:
    assert Drain.supports(-1, spec) is supported


@pytest.mark.slow
def test_a_closed_map_leaves_no_descriptor() -> None:
    def cycle() -> None:
        with drained(MapSpec("test", MapType.HASH, 4, 8, 100000)) as map_:
            keys = np.arange(5000, dtype="u4")
            map_.update(keys.view("V4"), keys.astype("u8").view("V8"))
            assert len(map_.read()) == len(map_.read(clear=True)) == 5000

    cycle()
    opened = open_fds()
    for _ in range(5):
        cycle()
    assert open_fds() <= opened
