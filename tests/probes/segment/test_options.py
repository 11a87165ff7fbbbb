"""Options of the segment probe: the key, the ratio and the filter."""

from __future__ import annotations

import numpy as np
import pytest

from bpf.arrays import Array
from bpf.attach.attachment import Hook
from bpf.errors import TextError, UsageError
from probes.segment.options import SegmentOptions
from probes.segment.records import DIGESTS_TABLE
from probes.snapshot import Loss, LossReason
from tests.probes.conftest import compiler as compiler
from tests.probes.deck import Deck
from tests.probes.deck import deck as deck
from tests.probes.segment.tools import (
    DATA,
    four,
    framed,
    large,
    measuring,
    run,
    tables,
    tcp,
)


@pytest.mark.slow
def test_the_ratio_bounds_and_the_key_and_the_filter_decide(deck: Deck) -> None:
    frames = [large(four() / tcp(dport=443, seq=n * 4000), 1300, 7) for n in range(50)]
    total = 50 * 186

    def of(options: SegmentOptions) -> Array:
        with measuring(deck.controller, options):
            for frame, context in frames:
                run(deck, Hook.TC_EGRESS, frame, context=context)
            run(deck, Hook.TC_EGRESS, framed(four() / tcp(dport=80) / DATA))
            found = tables(deck)["egress", DIGESTS_TABLE]
        filtered = found.losses.get(LossReason.FILTERED, Loss()).packets
        assert filtered == bool(options.capture)
        return found.rows["value"]["digest"]

    some = of(SegmentOptions("one", ratio=16, interval=0))
    assert len(np.unique(some)) == len(some)
    assert abs(len(some) - total / 16) < 5 * (total / 16) ** 0.5
    assert int(some.max()) >> 32 < (1 << 32) // 16
    other = of(SegmentOptions("two", capture="dport:443", interval=0))
    assert len(np.unique(other)) == total
    assert not np.isin(some, other).any()


@pytest.mark.parametrize(
    "options",
    [
        SegmentOptions(""),
        SegmentOptions("k" * 257),
        SegmentOptions("k", ratio=0),
        SegmentOptions("k", ratio=65537),
        SegmentOptions("k", interval=400),
        SegmentOptions("k", capture="rate>1M"),
    ],
)
def test_impossible_options_are_refused(options: SegmentOptions) -> None:
    with pytest.raises((UsageError, TextError)):
        options.check()
