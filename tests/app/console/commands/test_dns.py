"""The box of DNS: what the ready probe counts, a line for each server and name."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from app.console.dialogs.dns import PROBE, page
from app.console.live.flows import LiveFlows
from app.console.live.frames import Frame
from app.console.live.paths import LivePaths
from probes.tables.conversion import TableKind, TableSchema
from tests.app.console.fake import becomes, desk
from tests.app.console.fake_plane import FakePlane, config
from tests.support.console.feed import window

_KEY = np.dtype([("server", "u4", (4,)), ("name", "u1", (64,))])
_COUNTS = ("queries", "answers", "timed", "mean_us", "max_us", "no_such_name", "failed")
_VALUE = np.dtype([(name, "u8") for name in _COUNTS])


def frame(*rows: tuple[bytes, bytes, tuple[int, ...]]) -> Frame:
    """A frame with rows of server, name and counts."""
    found = np.zeros(len(rows), [("key", _KEY), ("value", _VALUE)])
    for row, (server, name, counts) in zip(found, rows, strict=True):
        row["key"]["server"] = np.frombuffer(server, "u4")
        row["key"]["name"] = np.frombuffer(name.ljust(64, b"\0"), "u1")
        row["value"] = counts
    schema = TableSchema(TableKind.HASH, "")
    table = replace(window(found), probe=PROBE, metric=PROBE, side="ingress", schema=schema)
    return Frame(LiveFlows().view(), LivePaths().view(), (), metrics=(table,))


def shown(page: Text | Table) -> str:
    """The page as 78 cells of text."""
    console = Console(width=78, file=StringIO())
    with console.capture() as found:
        console.print(page)
    return found.get()


def test_a_line_has_counts_and_times_and_unknown_ones_are_no_zero() -> None:
    mapped = bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 53])
    six = bytes([0x20, 1, 13, 0xB8, *bytes(11), 9])
    rows = (
        (six, b"a\x1b[2J", (0, 1, 0, 0, 0, 1, 0)),
        (mapped, b"www.example.org", (1500, 1499, 1499, 300_500, 1_200_000, 2, 7)),
    )
    title, first, second = shown(page(frame(*rows))).splitlines()
    assert title.split()[:2] == ["Name", "Server"]
    assert first.split() == [
        "www.example.org", "192.0.2.53", "1.50", "k", "1.50", "k", "300", "1200", "2", "7",
    ]  # fmt: skip
    assert second.split() == ["a·[2J", "2001:db8::9", "0", "1", "-", "-", "1", "0"]
    assert "No query" in shown(page(frame()))


async def test_the_key_starts_the_probe_once_and_opens_the_box() -> None:
    plane = FakePlane(config("flow"))
    async with desk(controller=plane) as console:
        for _ in range(2):
            await console.press("D")
            await becomes(console, lambda: "DNS by UDP" in console.text)
            await console.press("escape")
            assert "DNS by UDP" not in console.text
        assert sum("add" in asked[0] for asked in plane.asked) == 1
