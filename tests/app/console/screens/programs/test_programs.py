"""The programs screen: its list, its panels, its metrics, and unsaved edits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.console.screens.programs.panels import MOST_ENTRIES as MOST
from bpf.compiler import CompileError, Diagnostic
from probes.tables.conversion import TableKind, TableSchema
from tests.app.console.fake_plane import SOURCE, FakePlane, config
from tests.app.console.screens.programs.bench import NASTY, bench, changes
from tests.support.console.feed import window


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_every_program_is_listed_the_built_in_one_too(width: int, height: int) -> None:
    async with bench(width, height) as b:
        rows = [line.split() for line in b.lines[2:7]]
        assert rows[0][:4] == ["flow", "ingress", "runs", "eth0"]
        assert rows[2][:4] == ["hello", "ingress", "runs", "eth0"]
        assert "hello.ingress.c" in b.title
        assert "generation 1 runs this" in b.title
        assert " 9  BPF_HASH(seen" in b.text or height == 24
        assert "f5 compiles and verifies" in b.panel
        for word in ("⏎ Edit", "f5 Check", "f8 Swap", "f9 Roll back", "? Keys", "q Quit"):
            assert word in b.lines[-1]
        # The editor has room to be worked in.
        await b.press("enter")
        assert b.editor.size.height >= 12
        assert "esc List" in b.lines[-1]
        assert "Edit" not in b.lines[-1]
        await b.press("escape")
        assert b.screen.listing.has_focus


@pytest.mark.slow
async def test_keys_in_the_editor_are_text() -> None:
    async with bench() as b:
        await b.press("enter")
        await b.type("q3x/d")
        assert b.editor.text.startswith("q3x/d#include")
        assert "Quit" not in b.lines[-1]
        assert "Keys" not in b.lines[-1]
        assert b.app.return_value is None
        assert changes(b.plane) == []
        await b.press("escape", "6")
        assert b.app.current_mode == "events"


@pytest.mark.slow
async def test_an_edit_is_always_visible_and_never_lost() -> None:
    async with bench() as b:
        await b.write(SOURCE + "// more\n")
        assert "MODIFIED" in b.title
        assert "modified" in b.lines[4]
        await b.press("j")
        assert "hello.egress.c" in b.title
        assert "MODIFIED" not in b.title
        await b.press("j", "6", "3", "5", "k", "k")
        assert b.editor.text.endswith("// more\n")
        assert "MODIFIED" in b.title
        # Also where somebody else puts another generation in its place, or removes it.
        b.plane.replace(config("hello").with_source("ingress", SOURCE + "// theirs\n"))
        b.screen._poll()
        await b.feed()
        await b.until_still()
        assert b.editor.text.endswith("// more\n")
        await b.press("d")
        assert "-// theirs" in b.panel
        assert "+// more" in b.panel
        del b.plane.running["hello"]
        b.screen._poll()
        await b.feed()
        await b.until_still()
        assert "removed; edits are kept" in b.text
        await b.press("q")
        assert b.app.return_value is None
        assert "hello.ingress.c; q again quits" in b.complaints[-1]
        await b.press("q")
        assert b.app.return_value == 0


async def test_what_is_saved_or_reverted_is_not_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with bench() as b:
        await b.write("int a;\n")
        await b.press("ctrl+s")
        assert " Write to hello.ingress.c" in b.lines[-2]
        await b.press("enter")
        assert (tmp_path / "hello.ingress.c").read_text() == "int a;\n"
        assert "MODIFIED, saved" in b.title
        assert list(tmp_path.iterdir()) == [tmp_path / "hello.ingress.c"]
        await b.write("int b;\n")
        await b.press("ctrl+r")
        assert b.editor.text == SOURCE
        assert "MODIFIED" not in b.title
        b.editor.undo()
        await b.until_still()
        assert b.editor.text == "int b;\n"
        b.editor.redo()
        await b.press("escape", "q")
        assert b.app.return_value == 0


async def test_a_file_of_somebody_else_is_overwritten_only_when_asked_again(
    tmp_path: Path,
) -> None:
    theirs = tmp_path / "theirs.c"
    theirs.write_text("int theirs;")
    theirs.chmod(0o640)
    async with bench() as b:
        for _ in range(2):
            assert theirs.read_text() == "int theirs;"
            if not b.screen.prompt.is_open:
                await b.press("ctrl+s", "ctrl+u")
                await b.pilot.pause()
                b.screen.prompt.query_one("PromptInput").value = str(theirs)  # type: ignore[attr-defined]
            await b.press("enter")
        assert theirs.read_text() == SOURCE
        assert theirs.stat().st_mode & 0o777 == 0o640
        await b.press("ctrl+s", "ctrl+u")
        b.screen.prompt.query_one("PromptInput").value = "/proc/nowhere/x.c"  # type: ignore[attr-defined]
        await b.press("enter")
        assert "/proc/nowhere/x.c is not written: No such file" in b.text


async def test_a_file_that_another_source_was_not_saved_to_is_never_overwritten_unasked(
    tmp_path: Path,
) -> None:
    """Saved to A, then to B, which is there already."""
    mine, theirs = tmp_path / "mine.c", tmp_path / "theirs.c"
    theirs.write_text("int theirs;")
    async with bench() as b:
        for _ in range(2):  # its own file again and again
            await b.app.action_command(f"program.save {mine}")
        assert mine.read_text() == SOURCE
        await b.app.action_command(f"program.save {theirs}")
        await b.until_still()
        assert theirs.read_text() == "int theirs;"
        assert "theirs.c exists and is left alone; overwrite after" in b.complaints[-1]
        await b.press("ctrl+s", "ctrl+u")
        await b.pilot.pause()
        b.screen.prompt.query_one("PromptInput").value = str(theirs)  # type: ignore[attr-defined]
        await b.press("enter")
        assert theirs.read_text() == "int theirs;"
        await b.press("escape")
        await b.app.action_command(f"program.save {theirs} overwrite")
        assert theirs.read_text() == SOURCE


async def test_costs_are_measured_on_demand_and_grow_old() -> None:
    async with bench() as b:
        assert "41.3" not in b.text
        await b.press("m")
        assert "41.3" in b.lines[4]
        assert "55.0" in b.lines[5]
        assert "measured 41.3 ns/packet, generation 1 at" in b.title


async def test_the_memory_in_use_is_shown_beside_its_limit() -> None:
    async with bench(140) as b:
        assert "memory 105 MiB of 256 MiB" in b.strip


async def test_panels_go_round_and_the_directions_too() -> None:
    async with bench() as b:
        b.plane.say("hello", "replaced by hand")
        b.plane.say("other", "not this one")
        await b.press("v")
        assert "replaced by hand" in b.panel
        assert "not this one" not in b.panel
        seen = []
        for _ in range(6):
            await b.press("f3")
            seen.append(b.screen.source_panel.chosen.value)
        assert sorted(seen) == ["diff", "events", "log", "metrics", "problems", "report"]
        await b.press("f2")
        assert "hello.egress.c" in b.title
        await b.press("f2")
        assert "hello.ingress.c" in b.title
        await b.press("j", "j", "f2")
        assert "drop has no other direction" in b.complaints[-1]


@pytest.mark.slow
async def test_without_any_probe_it_says_how_to_begin() -> None:
    async with bench(80, 24, FakePlane(), row=0) as b:
        assert "a adds one from its configuration file" in b.text
        await b.press("f5", "f8", "f9", "ctrl+s", "ctrl+r", "f4", "f2", "m", "x", "e", "d", "l")
        assert b.plane.asked == []


async def test_a_failed_probe_is_marked_with_its_reason() -> None:
    async with bench() as b:
        b.plane.fail("drop", "interface eth0 went away")
        b.screen._poll()
        await b.feed()
        await b.until_still()
        assert "failed: interface" in b.text
        await b.press("j", "j")
        assert "interface eth0 went away" in b.title


async def test_no_text_of_others_can_break_the_screen() -> None:
    plane = FakePlane(config("hello").with_source("ingress", f"/* {NASTY[:-1]} */\n" + SOURCE))
    plane.refusal = CompileError(
        "hello", [Diagnostic("hello.ingress.c", 3, 1, "error", NASTY)], f"{NASTY}\n0: (95) {NASTY}"
    )
    plane.fail("hello", NASTY)
    async with bench(plane=plane, row=0) as b:
        await b.press("f5", "f4", "escape")
        for key in ("p", "l", "l", "d", "r", "v"):
            await b.press(key)
            for line in b.lines:
                assert not {"\x1b", "\x9b", "\u202e", "\udc80"} & set(line)


async def test_the_source_can_be_edited_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from contextlib import nullcontext

    script = tmp_path / "ed it"
    script.write_text('#!/bin/sh\necho "// by $0" >> "$1"\n')
    script.chmod(0o755)
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"'{script}'")
    async with bench() as b:
        monkeypatch.setattr(b.app, "suspend", nullcontext)
        await b.press("ctrl+o")
        assert b.editor.text.endswith("// by " + str(script) + "\n")
        assert "MODIFIED" in b.title
        monkeypatch.setenv("EDITOR", "/nonexistent/editor")
        await b.press("ctrl+o")
        assert "set EDITOR to an editor" in b.complaints[-1]


async def test_tables_of_metrics_are_no_flows() -> None:
    async with bench(row=0) as b:
        rows = np.zeros(3, [("key", "u4"), ("value", "u8")])
        table = replace(
            window(rows, 7, generation=9), probe="hello", metric="senders",
            schema=TableSchema(TableKind.HASH),
        )  # fmt: skip
        b.plane.publish(table)
        await b.press("3")
        last = b.app.time.frame.last
        assert last is not None
        assert last.generation == 1
        assert "0 flows" in b.strip


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_the_last_window_of_a_metric_is_shown_entry_by_entry(width: int, height: int) -> None:
    value = np.dtype([("packets", "u8"), ("bytes", "u8")])
    rows = np.zeros(MOST + 5, [("key", "<u4"), ("value", value)])
    rows["key"][0], rows["value"][0] = 0x0100000A, (7, 420)
    schema = TableSchema(TableKind.HASH, "by sender", fields={"key": "ipv4"})
    table = replace(
        window(rows, 12), probe="hello", side="ingress", metric="senders", schema=schema,
        occupancy=1.0,
    )  # fmt: skip
    async with bench(width, height) as b:
        await b.press("w")
        assert "No window has ended yet" in b.panel
        b.plane.publish(table)
        b.plane.publish(replace(table, side="egress", metric="others"))
        await b.until_still()
        assert "senders" in b.panel
        assert "window 12, 1.0 s, 205 entries" in b.panel
        assert "10.0.0.1" in b.panel
        assert "packets=7 bytes=420" in b.panel
        assert "others" not in b.panel
        b.screen.panel.focus()
        await b.press("G")
        assert "5 more entries" in b.panel
        b.plane.publish(replace(table, rows=rows[:1], window=13))
        await b.until_still()
        assert "window 13, 1.0 s, 1 entry, and its map is full" in b.panel or width == 80
        assert "more entries" not in b.panel
