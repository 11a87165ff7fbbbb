"""Completion: fields, then values; values of present rows come first."""

from __future__ import annotations

import numpy as np
import pytest

from app.console.live.flows import LIVE
from app.console.prompt.filter_completion import complete
from probes.filter import RowTable
from probes.flow.filter import LIVE_FLOWS


def offered(text: str, table: RowTable | None = None) -> list[str]:
    """The whole texts that could become of one, the cursor at `|`."""
    position = text.index("|")
    plain = text.replace("|", "")
    found = complete(plain, position, LIVE_FLOWS, table, {"web": "port:80"})
    return [plain[: found.begin] + one + plain[position:] for one in found.candidates]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp|", ["dport:"]),
        ("tcp !dp|", ["tcp !dport:"]),
        ("(tcp or sp|)", ["(tcp or sport:)"]),
        ("rt|", ["rtt>"]),
        ("proto:tc|", ["proto:tcp"]),
        ("proto:tcp,UD| x", ["proto:tcp,udp x", "proto:tcp,udplite x"]),
        ("icmp:ti|", ["icmp:time-exceeded", "icmp:timestamp-request", "icmp:timestamp-reply"]),
        ("dscp:cs1,E|", ["dscp:cs1,ef"]),
        ("dir:|", ["dir:in", "dir:out"]),
        ("rtt>50|", ["rtt>50ns", "rtt>50us", "rtt>50ms", "rtt>50s", "rtt>50m", "rtt>50h",
                     "rtt>50d"]),
        ("loss>|", []),
        ("@w|", ["@web"]),
        ("host:/d|", []),
        ("host:/a,1|", []),
        ("host:/d/ di|", ["host:/d/ dir:"]),
        ('host:"d p|', []),
        ("gr|", ["gre"]),
        ("unheard:|", []),
    ],
)  # fmt: skip
def test_what_may_follow(text: str, expected: list[str]) -> None:
    assert offered(text) == expected


def test_every_field_is_offered_where_a_term_begins_and_explained() -> None:
    found = complete("", 0, LIVE_FLOWS).candidates
    assert [one[:-1] for one in found][: len(LIVE_FLOWS.fields)] == list(LIVE_FLOWS.fields)
    assert all(field.help for field in LIVE_FLOWS.fields.values())


def test_values_are_those_of_the_rows_the_most_frequent_first() -> None:
    rows = np.zeros(10, LIVE)
    rows["version"] = 4
    rows["source"][:, :4] = (10, 0, 0, 1)
    rows["destination"][:, :4] = (192, 0, 2, 1)
    rows["destination"][:3, 3] = 7
    rows["source_port"], rows["destination_port"] = 40000, 443
    rows["destination_port"][4:] = 80
    table = RowTable(rows)
    assert offered("dport:|", table) == ["dport:80", "dport:443"]
    assert offered("port:4|", table) == ["port:40000", "port:443"]
    assert offered("dst:|", table) == ["dst:192.0.2.1", "dst:192.0.2.7"]
    assert offered("host:10|", table) == ["host:10.0.0.1"]
