"""The routers of a path, and the loop that they make."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from probes.path.analysis.loops import loop_of


@pytest.mark.parametrize(
    ("routers", "loop"),
    [
        ((1, 2, 3, 4, 5), (0, 0)),
        ((1, 2, 3, 4, 3, 4), (3, 2)),
        ((1, 2, 3, 4, 3, 4, 3, 4, 3), (3, 2)),
        ((1, 2, 3, 4, 5, 3, 4, 5, 3), (3, 3)),
        # Router 4 answers seldom, or never.
        ((1, 2, 3, 4, 3, 0, 3, 0, 3), (3, 2)),
        ((1, 2, 3, 0, 3, 0, 3), (3, 2)),
        ((1, 2, 0, 0, 3, 4, 0, 4, 3, 4), (6, 2)),
        # One repetition may be a change of the route: one router more.
        ((1, 2, 3, 4, 3), (0, 0)),
        # A router that forwards packets whose TTL ended, and a translation that hides the others.
        ((1, 2, 2, 3, 4), (0, 0)),
        ((1, 2, 2, 2, 2, 2), (0, 0)),
        ((1, 2, 2, 0, 2, 0, 2), (0, 0)),
        # The packets leave the loop: no loop.
        ((1, 2, 3, 2, 3, 4, 5), (0, 0)),
        ((), (0, 0)),
        ((0, 0, 0, 0), (0, 0)),
    ],
)
def test_a_loop_has_a_first_hop_and_a_number_of_routers(
    routers: Sequence[int], loop: tuple[int, int]
) -> None:
    assert loop_of((0, *routers)) == loop
