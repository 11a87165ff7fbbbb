"""The number of distinct flows is estimated right from none to a million, and merges exactly."""

from __future__ import annotations

import base64
import itertools
import json
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bpf.arrays import Array
from bpf.errors import UsageError
from probes.monitor.options import BITS
from probes.monitor.sketch import Sketch

ALL_BITS = range(BITS[0], BITS[1] + 1)
HASHES = arrays("u8", st.integers(0, 60))
COUNTS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000)


def hashes(rng: np.random.Generator, flows: int) -> Array:
    return rng.integers(0, 1 << 64, flows, "u8")


def grown(
    rng: np.random.Generator, counts: tuple[int, ...], bits: tuple[int, ...], rounds: int
) -> Iterator[tuple[int, Sketch]]:
    """A sketch of each size at each number of flows, in each round."""
    for _ in range(rounds):
        flows = hashes(rng, counts[-1])
        for count, size in itertools.product(counts, bits):
            yield count, Sketch.of(flows[:count], size, "")


def many(rng: np.random.Generator, flows: int, bits: int) -> Sketch:
    """A sketch of more flows than can be hashed one by one, by how their maxima are distributed."""
    inside = rng.multinomial(flows, np.full(1 << bits, 0.5**bits))
    above = -np.expm1(np.log(rng.random(1 << bits)) / inside)
    return Sketch(bits, ((1 << 32) - 1 - 2 * (above * 2**31).astype("u8")).astype("u4"), "")


@pytest.mark.parametrize(("counts", "rounds"), [(COUNTS, 200), ((1_000_000,), 16)])
def test_errors_are_small_from_one_flow_to_a_million(counts: tuple[int, ...], rounds: int) -> None:
    """S2.7, and no bias; `bench.sketch` has the rounds that it takes to see the last percent."""
    errors: dict[tuple[int, int], list[float]] = {}
    for flows, sketch in grown(np.random.default_rng(1), counts, (8, 10, 12, 14), rounds):
        errors.setdefault((sketch.bits, flows), []).append(sketch.estimate() / flows - 1)
    for (bits, flows), each in errors.items():
        limit = 1.04 / math.sqrt(1 << bits)
        deviation, bias = np.sqrt(np.mean(np.square(each))), abs(np.mean(each))
        assert deviation <= limit * (1 + 2.5 / math.sqrt(2 * rounds)), f"{bits} bits, {flows} flows"
        assert bias <= limit * (1 / 3 + 2.5 / math.sqrt(rounds)), f"{bits} bits, {flows} flows"


@pytest.mark.parametrize("flows", [5, 40, 1000])
def test_few_registers_have_no_bias_either(flows: int) -> None:
    rng = np.random.default_rng(2)
    estimates = [Sketch.of(hashes(rng, flows), 4, "").estimate() for _ in range(3000)]
    assert np.mean(estimates) / flows == pytest.approx(1, abs=0.015)


def test_values_that_are_cells_make_no_bias_where_flows_are_very_many() -> None:
    rng, flows = np.random.default_rng(3), 1 << 44
    estimates = [many(rng, flows, 14).estimate() for _ in range(20)]
    assert np.mean(estimates) / flows == pytest.approx(1, abs=0.006)


def test_registers_that_are_full_give_a_number() -> None:
    full = Sketch(4, np.full(16, 0xFFFFFFFF, "u4"), "")
    assert 1 << 35 < full.band()[0] < full.estimate() < full.band()[1] < math.inf


@pytest.mark.parametrize("bits", ALL_BITS)
def test_no_flow_is_none_for_sure(bits: int) -> None:
    nothing = Sketch.of(np.empty(0, "u8"), bits, "")
    assert nothing.estimate() == 0
    assert nothing.band() == (0, 0)


@pytest.mark.parametrize("bits", ALL_BITS)
@pytest.mark.parametrize("value", [0, 1 << 63, (1 << 64) - 1])
def test_one_flow_is_one(bits: int, value: int) -> None:
    one = Sketch.of(np.array([value] * 9, "u8"), bits, "")
    assert 1 <= one.estimate() <= 1 + 1 / (1 << bits)
    low, high = one.band()
    assert low == 1
    assert high <= (1.04 if bits >= 6 else 3)


@pytest.mark.parametrize(("bits", "confidence"), [(8, 0.95), (12, 0.95), (8, 0.5)])
def test_the_band_has_the_flows_as_often_as_it_says(bits: int, confidence: float) -> None:
    covered: dict[int, list[bool]] = {}
    for flows, sketch in grown(np.random.default_rng(4), COUNTS, (bits,), 250):
        low, high = sketch.band(confidence)
        covered.setdefault(flows, []).append(low <= flows <= high)
    tolerance = 3 * math.sqrt(confidence * (1 - confidence) / 250)
    for flows, each in covered.items():
        assert np.mean(each) >= confidence - tolerance, f"{flows} flows"
        # Where they are few, counts are whole and the band has to have more.
        assert np.mean(each) <= confidence + tolerance or flows < 3 << bits, f"{flows} flows"


@pytest.mark.parametrize(("bits", "flows"), [(14, 3), (4, 3), (4, 20), (8, 30), (6, 60), (4, 400)])
def test_the_band_is_that_of_the_likelihood(bits: int, flows: int) -> None:
    """Against the sum over all counts, with prior 1 / n."""
    sketch = Sketch.of(hashes(np.random.default_rng(5), flows), bits, "")
    used = np.count_nonzero(sketch.registers)
    below = float(np.mean(sketch.registers / 2**32))
    counts = range(used, 20 * flows)
    weight = np.array(
        [math.exp(math.lgamma(n) - math.lgamma(n - used + 1) + n * math.log(below)) for n in counts]
    )
    share = np.cumsum(weight) / np.sum(weight)
    for confidence in (*np.arange(0.5, 0.99, 0.02), 0.999, 0.9999):
        tails = (1 - confidence) / 2, (1 + confidence) / 2
        low, high = (counts[int(np.argmax(share >= tail))] for tail in tails)
        assert sketch.band(confidence) == (low, max(high, sketch.estimate()))


@given(arrays("u4", 16), st.floats(0.001, 0.9999))
def test_the_estimate_is_within_the_band_and_no_less_than_what_was_seen(
    registers: Array, confidence: float
) -> None:
    sketch = Sketch(4, registers | np.uint32(1), "")
    low, high = sketch.band(confidence)
    assert 16 <= low <= sketch.estimate() <= high < math.inf


@pytest.mark.parametrize("confidence", [0, 1, -1, math.nan])
def test_a_confidence_is_a_share(confidence: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        Sketch.of(np.ones(3, "u8"), 4, "").band(confidence)


@given(HASHES, HASHES, HASHES, st.sampled_from((4, 5, 14)))
@settings(max_examples=40)
def test_merged_is_the_sketch_of_all_flows(a: Array, b: Array, c: Array, bits: int) -> None:
    """S2.21: by windows, CPUs and hosts, in any order and as often as one likes."""
    x, y, z = (Sketch.of(each, bits, "key") for each in (a, b, c))
    union = Sketch.of(np.unique(np.concatenate((a, b, c))), bits, "key").registers
    for merged in (x.merged(y, z), z.merged(y).merged(x), x.merged(y.merged(z)), z.merged(x, y, x)):
        assert (merged.registers == union).all()
        assert (merged.bits, merged.seed) == (bits, "key")
    assert (x.merged().registers == x.merged(x).registers).all()
    cpus = np.array([each.registers for each in (x, y, z)])
    assert (Sketch.of_cpus(cpus, bits, "key").registers == union).all()


def test_a_register_keeps_the_largest_of_the_upper_bits() -> None:
    flows = np.array([0x0000000A_F0000003, 0x00000007_FFFFFFF3, 0xFFFFFFF0_00000004], "u8")
    kept = dict(enumerate(Sketch.of(flows, 4, "").registers.tolist()))
    assert {at: value for at, value in kept.items() if value} == {3: 0xB, 4: 0xFFFFFFF1}


def test_the_kernels_registers_are_copied() -> None:
    kernel = np.full((2, 16), 3, "u4")
    sketch = Sketch.of_cpus(kernel, 4, "")
    kernel[:] = 0
    assert (sketch.registers == 3).all()
    with pytest.raises(ValueError, match="read-only"):
        sketch.registers[0] = 0


def test_what_has_nothing_in_common_is_not_merged() -> None:
    flows = np.ones(1, "u8")
    with pytest.raises(UsageError, match=r"of 8 and 10 bits can't be merged; .*same bits"):
        Sketch.of(flows, 8, "a").merged(Sketch.of(flows, 8, "a"), Sketch.of(flows, 10, "a"))
    with pytest.raises(UsageError, match=r"of seeds a and b can't be merged; .*same seed"):
        Sketch.of(flows, 8, "a").merged(Sketch.of(flows, 8, "b"))


@given(arrays("u8", st.integers(0, 40), elements=st.integers((1 << 64) - (1 << 40), (1 << 64) - 1)))
def test_ranks_are_those_of_a_classic_sketch(flows: Array) -> None:
    expected = [0] * 16
    for flow in flows.tolist():
        upper = f"{flow:064b}"[:31]
        expected[flow % 16] = max(expected[flow % 16], 1 + len(upper) - len(upper.lstrip("1")))
    ranks = Sketch.of(flows, 4, "").ranks()
    assert ranks.dtype == np.uint8
    assert ranks.tolist() == expected


def test_others_estimate_by_ranks() -> None:
    sketch = Sketch.of(hashes(np.random.default_rng(6), 50_000), 12, "")
    classic = 0.7213 / (1 + 1.079 / 4096) * 4096**2 / np.sum(0.5 ** sketch.ranks().astype(float))
    assert classic == pytest.approx(50_000, rel=0.05)


def test_a_sketch_travels_as_json() -> None:
    sketch = Sketch.of(hashes(np.random.default_rng(7), 500), 6, "fleet")
    document = json.loads(json.dumps(sketch.to_dict()))
    again = Sketch.from_dict(document)
    assert (again.registers == sketch.registers).all()
    assert (again.bits, again.seed) == (6, "fleet")
    assert (document["low"], document["high"]) == sketch.band()
    assert document["estimate"] == sketch.estimate()
    assert base64.b64decode(document["ranks"]) == sketch.ranks().tobytes()
    assert base64.b64decode(document["registers"]) == sketch.registers.astype("<u4").tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": "6"}, "bits is str, not int"),
        ({"bits": 3}, "bits = 3 is not between 4 and 14"),
        ({"bits": 7}, "7 bits have 128"),
        ({"bits": 10**9}, "is not between 4 and 14"),
        ({"seed": None}, "seed is NoneType, not str"),
        ({"registers": [1]}, "registers is list, not str"),
        ({"registers": "%"}, "not base64"),
        ({"registers": "\u00e9"}, "not base64"),
        ({"registers": "AAAA"}, "of 3 bytes; each has 4"),
        ({"registers": base64.b64encode(b"\x01\0\0\0" * 64).decode()[:-4]}, "each has 4 bytes"),
        ({"registers": base64.b64encode(b"\0\0\0\1" * 64).decode()}, "even values"),
    ],
)
def test_what_is_no_sketch_is_refused(change: dict[str, object], message: str) -> None:
    document = Sketch.of(np.ones(3, "u8"), 6, "fleet").to_dict()
    with pytest.raises(UsageError, match=message):
        Sketch.from_dict({**document, **change})


@pytest.mark.parametrize("name", ["bits", "seed", "registers"])
def test_what_is_missing_is_named(name: str) -> None:
    document = Sketch.of(np.ones(3, "u8"), 6, "fleet").to_dict()
    del document[name]
    with pytest.raises(UsageError, match=f"sketch: no {name}"):
        Sketch.from_dict(document)


def test_registers_of_another_type_are_refused() -> None:
    with pytest.raises(UsageError, match="uint32"):
        Sketch(4, np.zeros(16, "u8"), "")


@pytest.mark.parametrize(("bits", "most"), [(8, 7), (10, 14), (12, 28), (14, 57)])
def test_few_flows_are_a_whole_number(bits: int, most: int) -> None:
    """Small results are whole numbers; large ones stay as estimated."""
    rng = np.random.default_rng(bits)
    errors = []
    for _ in range(200):
        hashes = rng.integers(0, 1 << 64, most, dtype="u8")
        few = Sketch.of(hashes[: most // 3], bits, "x")
        assert few.flows() == np.count_nonzero(few.registers)
        errors.append(Sketch.of(hashes, bits, "x").flows() / most - 1)
    assert abs(np.mean(errors)) <= 1.04 / 3 / 2 ** (bits / 2)
    many = Sketch.of(rng.integers(0, 1 << 64, 5000, dtype="u8"), bits, "x")
    assert many.flows() == many.estimate()
