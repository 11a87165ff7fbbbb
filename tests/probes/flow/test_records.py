"""Rows from records: merging, hashing, and time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bpf.arrays import Array
from bpf.attach.interface import Interface
from probes.flow import records as module
from probes.flow.clock import TickClock
from probes.flow.records import RECORD, FlowDirection, hash_keys, key_words, rows_of

ETH = Interface("eth0", 2, ethernet=True)


@pytest.fixture(scope="module")
def clock() -> Iterator[TickClock]:
    ticks = TickClock()
    yield ticks
    ticks.close()


def packets_of(records: int) -> Array:
    """Packets of each of `records` records, all different."""
    return np.arange(1, records + 1, dtype="u8") << np.uint64(33)


def some_records(numbers: Array) -> Array:
    """Records: equal numbers mean the same flow."""
    made = np.zeros(len(numbers), RECORD)
    made["key"][:, 0] = numbers
    made["key"][:, 4] = 6 << 32
    made["packets"] = packets_of(len(numbers))
    made["bytes"] = 100
    made["tos"] = np.arange(len(numbers)) % 251
    made["tcp_flags"] = 1 << (np.arange(len(numbers)) % 8)
    return made


def check_merge(numbers: Array, clock: TickClock) -> None:
    given_ = some_records(numbers)
    now = clock._jiffies
    given_["first"] = now - 10 - (numbers + np.arange(len(numbers), dtype="u8") * 7) % 5
    given_["last"] = now - np.arange(len(numbers))
    rows = rows_of([given_[:7], given_[7:]], FlowDirection.EGRESS, clock, ETH)
    assert len(rows) == len(np.unique(numbers))
    for row in rows:
        of_flow = numbers == int.from_bytes(row["source"].tobytes()[:8], "little")
        mine = given_[of_flow]
        assert row["packets"] == packets_of(len(numbers))[of_flow].sum()
        assert row["bytes"] == 100 * of_flow.sum()
        assert row["tcp_flags"] == np.bitwise_or.reduce(mine["tcp_flags"])
        assert row["first_ns"] == clock.monotonic_ns(mine["first"]).min()
        assert row["tos"] in mine["tos"][mine["first"] == mine["first"].min()]
        assert row["last_ns"] == clock.monotonic_ns(mine["last"]).max()
        assert row["direction"] == FlowDirection.EGRESS
        assert row["protocol"] == 6


@given(numbers=arrays("u8", st.integers(0, 60), elements=st.integers(0, 20)))
def test_records_of_one_flow_become_one_row(clock: TickClock, numbers: Array) -> None:
    check_merge(numbers, clock)


def test_flows_whose_hashes_collide_stay_apart(
    clock: TickClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "hash_keys", lambda keys: keys[:, 0] % np.uint64(3))
    check_merge(np.arange(40, dtype="u8") % 13, clock)


def test_a_flow_has_one_key_whatever_its_flags(clock: TickClock) -> None:
    both = some_records(np.zeros(1, "u8")), some_records(np.zeros(1, "u8"))
    both[1]["tcp_flags"] = both[1]["tos"] = 0xFF
    first, second = (key_words(rows_of([r], FlowDirection.INGRESS, clock, ETH)) for r in both)
    assert np.array_equal(first, second)
    out = key_words(rows_of([both[0]], FlowDirection.EGRESS, clock, ETH))
    assert not np.array_equal(first, out)
    assert hash_keys(first) != hash_keys(out)


def test_ticks_become_monotonic_time(clock: TickClock) -> None:
    before = time.monotonic_ns()
    clock.update()
    after = time.monotonic_ns()
    now = np.array([clock._jiffies], "u4")
    tolerance = clock.tick_ns + 10**7
    assert before - tolerance < int(clock.monotonic_ns(now)[0]) < after + tolerance
    wrapped = np.array([0xFFFFFFF0], "u4")
    ago = (clock._jiffies - 0xFFFFFFF0) % 2**32
    assert int(clock.monotonic_ns(wrapped)[0]) == int(clock.monotonic_ns(now)[0]) - (
        ago * clock.tick_ns
    )
