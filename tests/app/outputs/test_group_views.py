"""Tables of groups: columns, filters before grouping, and prefixes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from app.outputs.document import document
from app.outputs.filtering import Filtering
from app.outputs.sink import Sink
from app.outputs.views import VIEWS, grouped, with_prefixes
from app.run.options import VIEWS as NAMES
from app.run.options import Options
from bpf.errors import UsageError
from probes.flow.kinds import KINDS, parse_prefixes
from probes.flow.records import FLOW
from probes.snapshot import Snapshot
from tests.support.runs import Row, rows

END = 10**12
MOMENTS = "2025-12-31T23:59:59.500000000Z,2026-01-01T00:00:00.000000000Z"


def window() -> Snapshot:
    """HTTPS with one host in a VLAN, both directions, and DNS with another, one direction."""
    table = np.zeros(3, FLOW)
    table["interface"] = b"eth0"
    table["version"], table["protocol"] = 4, (6, 6, 17)
    here, web, dns = (192, 0, 2, 1), (198, 51, 100, 7), (198, 51, 101, 53)
    table["source"][:, :4] = here, web, here
    table["destination"][:, :4] = web, here, dns
    table["source_port"], table["destination_port"] = (40001, 443, 40002), (443, 40001, 53)
    table["direction"] = 1, 0, 1
    table["packets"], table["bytes"] = (1, 2, 3), (100, 2000, 300)
    table["tcp_flags"], table["vlan"] = (0x02, 0x12, 0), (7, 7, 0)
    table["first_ns"], table["last_ns"] = END - 500_000_000, END
    return Snapshot(
        "flow", "eth0", 1, 1, END - 10**9, END, 1_767_225_600_000_000_000, table, {}, 0.25, 0, 0
    )


def written(path: Path, text: str = "", views: tuple[str, ...] = KINDS) -> dict[str, list[Row]]:
    filtering = Filtering.of(text, views, {})
    chosen = [with_prefixes(VIEWS[name], (16, 64)) for name in views]
    with Sink(str(path), "csv", chosen, keep=filtering.kept) as sink:
        sink.write(window())
    assert filtering.total == (3 if text else 0), "a flow is counted once for all views"
    return {name: rows(path / f"{name}.csv") for name in views}


def check_groups(directory: Path, windows: list[Row]) -> None:
    """Each window's groups have the window's packets and bytes, in and out."""
    for kind in KINDS:
        counts = {row["window"]: [0, 0] for row in windows if row["metric"] == ""}
        for row in rows(directory / f"{kind}.csv"):
            for way in ("in", "out"):
                counts[row["window"]][0] += int(row[f"{way}_packets"])
                counts[row["window"]][1] += int(row[f"{way}_bytes"])
        for row in windows:
            assert counts[row["window"]] == [int(row["packets"]), int(row["bytes"])], kind


def test_the_tables_of_a_window(tmp_path: Path) -> None:
    written(tmp_path)
    begin = "1,2025-12-31T23:59:59.000000000Z,2026-01-01T00:00:00.000000000Z,eth0"
    lines = {kind: (tmp_path / f"{kind}.csv").read_text().splitlines()[1:] for kind in KINDS}
    assert {kind: sorted(found) for kind, found in lines.items()} == {
        "conversations": [
            f"conversations/2,{begin},4,17,udp,192.0.2.1,40002,198.51.101.53,53,dns,0,0,3,300,0,"
            f"{MOMENTS},0,,0,,,,,,,,",
            f"conversations/2,{begin},4,6,tcp,192.0.2.1,40001,198.51.100.7,443,https,2,2000,1,100,"
            f"18,{MOMENTS},7,,0,,,,,,,,",
        ],
        "hosts": [
            f"hosts/1,{begin},4,198.51.100.7,2,2000,1,100,1,{MOMENTS}",
            f"hosts/1,{begin},4,198.51.101.53,0,0,3,300,1,{MOMENTS}",
        ],
        "services": [
            f"services/1,{begin},17,udp,53,dns,0,0,3,300,1,{MOMENTS}",
            f"services/1,{begin},6,tcp,443,https,2,2000,1,100,1,{MOMENTS}",
        ],
        "networks": [f"networks/1,{begin},4,198.51.0.0/16,2,2000,4,400,2,{MOMENTS}"],
    }


def test_flows_are_filtered_before_they_are_grouped(tmp_path: Path) -> None:
    found = written(tmp_path, "dir:out")
    assert sorted(row["in_bytes"] for row in found["conversations"]) == ["0", "0"]
    assert [row["out_bytes"] for row in found["networks"]] == ["400"]
    (tmp_path / "both").mkdir()
    found = written(tmp_path / "both", "proto:udp", ("flows", *KINDS))
    assert {name: len(table) for name, table in found.items()} == {
        "flows": 1, "conversations": 1, "hosts": 1, "services": 1, "networks": 1,
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_grouped_window_is_a_document_of_its_view(kind: str) -> None:
    text = document([grouped(window(), kind)], "csv").decode()
    assert text.splitlines()[0] == ",".join(VIEWS[kind].header)
    assert text.splitlines()[1].startswith(f"{VIEWS[kind].schema},1,")


def test_groups_are_written_only_if_their_views_are_named() -> None:
    assert set(KINDS) < set(NAMES) == set(VIEWS)
    assert not set(KINDS) & set(Options(out="dir", monitor=True).output_spec({}).views)
    named = Options(out="dir", views="hosts,networks", network_prefix="20,48").output_spec({})
    assert (named.views, named.prefixes) == (("hosts", "networks"), (20, 48))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [("24,64", (24, 64)), ("0,0", (0, 0)), ("16", (16, 64)), ("/8, /56", (8, 56))],
)
def test_lengths_of_prefixes(text: str, lengths: tuple[int, int]) -> None:
    assert parse_prefixes(text) == lengths


@pytest.mark.parametrize("text", ["", "33", "24,129", "24,64,1", "x,64", "-1,64", "24,", "²,64"])
def test_wrong_lengths_of_prefixes(text: str) -> None:
    with pytest.raises(UsageError, match="is not the length of a prefix"):
        parse_prefixes(text)
    assert [name for name, _ in Options(network_prefix=text).problems({})] == ["network_prefix"]
