"""A table as a file: its contents, owner and place."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import struct
import sys
import time
import types
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from app import files
from app.commands.export_target import target
from app.console.live.flows import LiveFlows, LiveView
from app.console.screens.flows.columns import FLOWS
from app.console.tables import export
from app.console.tables.export import TableContent, svg
from app.console.tables.sorted_table import ItemRows
from app.console.tables.spec import TableSpec, columns
from bpf.errors import Cancel, CancelError, ProbedeckError, UsageError, cancelled_by
from tests.app.console.fake import becomes, desk, flow
from tests.app.console.screens.shown import flow_changes, flow_rows
from tests.support.console.feed import Flows, window
from widgets.table.rows import Column, Value

NOBODY = 65534
NOTHING = frozenset({"picture"})
SOME: tuple[Column[Any], ...] = (
    Column("name", "Name", 4, cells=lambda one: one[0]),
    Column("picture", "Picture", 4, cells=lambda _: "▁█"),
    Column("size", "Size", 6, "right", unit="bytes", cells=lambda one: f"{one[1]} B",
        written=lambda one: one[1]),
)  # fmt: skip


def rows(*values: tuple[str, Value]) -> ItemRows:
    return ItemRows.of(TableSpec("some", SOME), ((one[0], one) for one in values))


def view(*values: tuple[str, Value]) -> TableContent:
    return TableContent(rows(*values), tuple(enumerate(SOME)), NOTHING)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        ("csv", 'name,size_bytes\na,1.5\n"b,""c",\n'),
        ("jsonl", '{"name": "a", "size_bytes": 1.5}\n{"name": "b,\\"c", "size_bytes": null}\n'),
        ("txt", 'Name  Picture   Size\na     ▁█       1.5 B\nb,"c  ▁█       nan B\n'),
    ],
)
def test_values_have_no_units_and_text_is_what_is_shown(
    suffix: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / f"x.{suffix}"
    assert export.write_view(path, view(("a", 1.5), ('b,"c', float("nan")))) == 2
    assert path.read_text() == text
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("count", [0, 1, 4096, 4097, 9000])
def test_json_is_one_list_however_many_parts_it_was_written_in(count: int, tmp_path: Path) -> None:
    path = tmp_path / "x.JSON"
    export.write_view(path, view(*((str(n), n) for n in range(count))))
    expected = [{"name": str(n), "size_bytes": n} for n in range(count)]
    assert json.loads(path.read_text()) == expected


@pytest.fixture(scope="module")
def many() -> LiveView:
    """As many flows as there can be."""
    live = LiveFlows()
    for number in range(1, 6):
        made = Flows(16_000, seed=number).next(number * 10**9)
        live.add(window(made, number, end_ns=number * 10**9))
    return live.view()


@pytest.mark.timing
def test_as_many_flows_as_there_can_be_are_written_within_a_second(
    many: LiveView, tmp_path: Path
) -> None:
    source = flow_rows(many).ordered(FLOWS.names.index("rate"), descending=True)
    assert source.rows == 65_536
    told: list[float] = []
    started = time.process_time()
    path = tmp_path / "flows.csv"
    export.write_view(
        path, TableContent(source, tuple(enumerate(columns(FLOWS))), frozenset()), told.append
    )
    assert time.process_time() - started < 2
    found = list(csv.DictReader(io.StringIO(path.read_text())))
    assert len(found) == 65_536
    rates = np.array([float(row["rate_bps"]) for row in found])
    assert (np.diff(rates) <= 0).all()
    assert told == sorted(told)
    assert 0 <= told[0] < told[-1] <= 1


def test_a_cancelled_export_leaves_what_was_there(many: LiveView, tmp_path: Path) -> None:
    path, cancel = tmp_path / "flows.csv", Cancel()
    path.write_text("before")
    shown = TableContent(flow_rows(many), ((0, columns(FLOWS)[0]),), frozenset())

    def later(share: float) -> None:
        if share > 0.5:
            assert cancel.ask()

    with cancelled_by(cancel), pytest.raises(CancelError):
        export.write_view(path, shown, later)
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == [path.name]


def test_a_link_is_replaced_and_what_it_leads_to_is_left_alone(tmp_path: Path) -> None:
    secret, path = tmp_path / "secret", tmp_path / "x.csv"
    secret.write_text("kept")
    path.symlink_to(secret)
    assert files.exists(path)
    export.write_view(path, view(("a", 1)))
    assert secret.read_text() == "kept"
    assert not path.is_symlink()
    dangling = tmp_path / "y.csv"
    dangling.symlink_to(tmp_path / "nowhere")
    assert files.exists(dangling)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of somebody who has called sudo, and may write below it only where that is his."""
    if os.geteuid():
        pytest.skip("only root can be somebody else")
    with TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        who = files.Invoker(NOBODY, NOBODY, Path(directory), by_sudo=True)
        monkeypatch.setattr(files, "invoker", lambda: who)
        yield who.home


def test_under_sudo_files_are_of_who_called_it_and_where_he_may_write(home: Path) -> None:
    own, other = home / "own", home / "other"
    own.mkdir()
    other.mkdir()
    os.chown(own, NOBODY, NOBODY)
    path = target("~/own/x.csv")
    assert path == own / "x.csv"
    export.write_view(path, view(("a", 1)))
    assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)
    with pytest.raises(ProbedeckError, match=r"x\.csv is not written: Permission denied"):
        export.write_view(other / "x.csv", view(("a", 1)))
    assert not os.listdir(other)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("flows", "flows: a suffix is missing; there are .csv"),
        ("flows.cvs", "no format is called .cvs; did you mean .csv?"),
        ("~nobody_at_all/x.csv", "there is no such user"),
    ],
)
def test_a_name_that_says_no_format_is_refused(file: str, why: str) -> None:
    with pytest.raises(UsageError) as error:
        target(file)
    assert why in str(error.value)


def test_what_changed_between_two_moments_can_be_written(many: LiveView) -> None:
    changes = flow_changes(many, many)
    for position in range(9):
        assert len(changes.values(position)) == changes.rows


async def test_it_is_written_as_it_is_filtered_sorted_and_chosen(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    async with desk(80, 24) as console:
        await console.feed(*(flow(n, n, proto=6 if n % 2 else 17) for n in range(1, 60)))
        for line in (
            "view.columns source,rate,first,flags", "flow.filter tcp", "flow.sort source",
            "flow.reverse", f"view.export {path}",
        ):  # fmt: skip
            await console.app.action_command(line)
        await console.still()
        assert f"{path}: 30 rows" in console.complaints
    found = json.loads(path.read_text())
    assert [row["source"].split(".")[3].split(":")[0] for row in found] == [
        str(n) for n in range(59, 0, -2)
    ]
    assert list(found[0]) == ["source", "rate_bps", "first", "flags"]
    assert found[0]["rate_bps"] == 59_000
    assert found[0]["first"].startswith("20")
    assert found[0]["first"].endswith("Z")
    assert found[0]["flags"] == 0x12


async def test_the_prompt_asks_again_before_it_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("before")
    async with desk(120, 24) as console:
        await console.feed(flow(1, 10))
        await console.press("E")
        await console.type("x")
        await console.press("enter")
        assert "a suffix is missing" in console.text
        console.app.screen.query_one("PromptInput").value = str(path)  # type: ignore[attr-defined]
        await console.press("enter")
        await becomes(console, lambda: "which enter again overwrites" in console.text)
        assert path.read_text() == "before"
        await console.press("enter")
        prompt = console.app.screen.prompt  # type: ignore[attr-defined]
        await becomes(console, lambda: not prompt.is_open)
        assert path.read_text().startswith("Dir  Proto  Source")


async def test_a_whole_command_overwrites_only_what_it_is_told_to(tmp_path: Path) -> None:
    """As of tapes and keys, which nobody could be asked about."""
    path = tmp_path / "x.csv"
    path.write_text("before")
    async with desk(120, 24) as console:
        await console.feed(flow(1, 10))
        await console.press("3")
        for _ in range(2):
            await console.app.action_command(f"view.export {path}")
            await console.still()
            assert path.read_text() == "before"
        assert "x.csv exists and is left alone; overwrite after" in console.complaints[-1]
        await console.app.action_command(f"view.export {path} overwrite")
        await console.still()
        assert len(path.read_text().splitlines()) == 2


async def test_a_picture_shows_the_screen_without_the_prompt(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    async with desk(120, 24) as console:
        await console.feed(flow(1, 10))
        await console.press("E")
        console.app.screen.query_one("PromptInput").value = str(path)  # type: ignore[attr-defined]
        await console.press("enter")
        await console.still()
        picture = path.read_text()
    assert picture.startswith("<svg")
    assert "10.0.0.1:40001" in picture
    assert str(path) not in picture
    assert "Apply" not in picture, "the prompt's keys"
    assert "View" in picture, "the screen's keys"
    assert "https:" not in picture.replace("https://www.textualize.io", ""), "no font of a server"
    assert '<text xml:space="preserve"' in picture


async def test_screenshot_names_its_file_itself_and_png_needs_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    async with desk(120, 24) as console:
        await console.feed(flow(1, 10))
        await console.app.action_command("screenshot")
        await console.still()
        await console.app.action_command("screenshot x.png")
        await console.still()
        assert any(".venv/bin/pip install 'resvg-py" in text for text in console.complaints)
        await console.app.action_command("screenshot x.csv")
        await console.still()
        assert any("did you mean .svg?" in text for text in console.complaints)
        drawn = types.SimpleNamespace(svg_to_bytes=lambda svg_string: svg_string[:4].encode())
        monkeypatch.setitem(sys.modules, "resvg_py", drawn)
        await console.app.action_command("screenshot x.png")
        await console.still()
    (made,) = tmp_path.glob("probedeck-flows-*.svg")
    assert "10.0.0.1:40001" in made.read_text()
    assert (tmp_path / "x.png").read_bytes() == b"<svg"


async def test_a_png_is_a_picture_of_the_whole_screen(tmp_path: Path) -> None:
    pytest.importorskip("resvg_py", reason="resvg-py is not installed")
    if not any(Path("/usr/share/fonts").rglob("*.[to]tf")):
        pytest.skip("no font is installed")
    path = tmp_path / "x.png"
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10))
        await console.app.action_command(f"screenshot {path}")
        await console.still()
        outline = svg(console.app)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack_from(">II", data, 16)
    view = re.search(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"', outline)
    assert view
    assert (width, height) == pytest.approx((float(view[1]), float(view[2])), abs=1)
    # A picture without text or ground compresses to a few kilobytes.
    assert len(data) > 20_000
