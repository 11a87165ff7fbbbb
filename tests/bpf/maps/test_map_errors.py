"""Reads that the kernel or the memory interrupts: no entry is lost or comes twice."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from bpf.abi import MapType
from bpf.maps import drain, readers
from bpf.maps.map import Map, ReadMethod
from bpf.syscall import MapSpec
from tests.bpf.maps.entries import KEY, VALUE, contents, keys_of, spec_of, values_of


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
