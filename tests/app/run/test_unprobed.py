"""Why destinations have no probes, from their states."""

from __future__ import annotations

import pytest

from app.run.unprobed import reasons
from probes.path.traced import Traced, Unprobed

FRAGMENTS, SYN = {Unprobed.FRAGMENT: 400}, {Unprobed.OPENING: 3}


@pytest.mark.parametrize(
    ("packets", "sent", "unprobed", "found"),
    [
        (5, 5, {}, ()),
        (0, 5, {}, ()),  # of the tracer's own flow
        (9, 5, SYN, ()),  # every connection begins so
        (3, 0, SYN, ("no probe: 3 packets could not be probed: TCP SYN, FIN or RST (3)",)),
        (403, 0, FRAGMENTS | SYN, (
            "no probe: 403 packets could not be probed: fragments (400), TCP SYN, FIN or RST (3)",
        )),
        (500, 9, FRAGMENTS | SYN, ("400 packets could not be probed: fragments (400)",)),
        (2, 0, {}, ("no probe: none of 2 packets could become one",)),
    ],
)  # fmt: skip
def test_left_out_packets_are_told_by_reason(
    packets: int, sent: int, unprobed: dict[str, int], found: tuple[str, ...]
) -> None:
    traced = Traced("192.0.2.2", (), 0, (), (), packets, sent, 0, unprobed=unprobed)
    assert reasons([traced], "lo") == {"192.0.2.2": found}


def test_an_interface_that_is_gone() -> None:
    traced = Traced("192.0.2.2", (), 0, (), (), 0, 0, 0)
    (reason,) = reasons([traced], "none-such")["192.0.2.2"]
    assert reason == "no probe: no interface 'none-such'"
