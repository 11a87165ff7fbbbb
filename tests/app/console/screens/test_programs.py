"""Screen 5: programs edited, checked, swapped and rolled back, over a plane without a kernel."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from app.console.screens.programs.log import fold
from app.console.screens.programs.panels import unified
from app.console.screens.programs.screen import ProgramsScreen
from app.console.tables.metric_rows import MOST
from bpf.abi import ProgType
from bpf.compiler import CompileError, Compiler, Diagnostic
from bpf.errors import ProbedeckError
from probes.tables.conversion import TableKind, TableSchema
from tests.app.console.fake import Desk, desk
from tests.app.console.fake_plane import LOSING, SOURCE, FakePlane, config
from tests.support.console.feed import window
from widgets.editor import CodeEditor
from widgets.table.table import VirtualTable

REFUSED = SOURCE.replace("data + 34", "data + 14")
NASTY = "[/red] [bold]x[/] \x1b[31m \x9b31m \u202e 漢字 \udc80"


class Bench(Desk):
    """A desk with screen 5 in front."""

    plane: FakePlane

    @property
    def screen(self) -> ProgramsScreen:
        screen = self.app.screen
        assert isinstance(screen, ProgramsScreen)
        return screen

    @property
    def editor(self) -> CodeEditor:
        editor = self.screen.editor
        assert editor is not None
        return editor

    @property
    def title(self) -> str:
        """The line above the editor."""
        return self.lines[self.screen.query_one("#editing").region.y]

    @property
    def panel(self) -> str:
        region = self.screen.query_one("#panel", VirtualTable).region
        return "\n".join(self.lines[region.y : region.bottom])

    async def until_still(self) -> None:
        await self.pilot.pause()
        while self.app.workers:
            await self.app.workers.wait_for_complete()
            await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        for key in keys:
            await super().press(key)
            await self.until_still()

    async def write(self, text: str) -> None:
        """Have other source in the editor, as typed."""
        self.editor.put(text)
        await self.pilot.pause()


@asynccontextmanager
async def bench(
    width: int = 120, height: int = 40, plane: FakePlane | None = None, row: int = 2
) -> AsyncIterator[Bench]:
    plane = plane or FakePlane(config("flow"), config("hello"), config("drop", egress=False))
    async with desk(width, height, plane) as console:
        at = Bench(console.app, plane, console.pilot)
        at.plane = plane
        await at.feed()
        await at.press("5")
        await at.press(*["j"] * row)
        yield at


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler() as compiler:
        yield compiler


def changes(plane: FakePlane) -> list[str]:
    """The plane's requests, without checks."""
    return [what for what, _ in plane.asked if what != "check"]


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


async def test_a_check_says_what_it_found_while_typing_goes_on(compiler: Compiler) -> None:
    async with bench() as b:
        b.plane.compiler = compiler
        await b.press("f5")
        assert "verified in 26.0 ms" in b.title
        assert "would take 43.1 ns/packet" in b.title
        assert "no remarks" in b.panel
        await b.press("enter")
        b.plane.gate.clear()
        await b.write(SOURCE.replace("u64 one = 1;", "u64 one = 1"))
        await b.pilot.pause(0.6)
        assert "checking" in b.title
        # The check is under way, and keys are taken as ever.
        await b.pilot.press("end", "a", "b", "c")
        assert "abc" in b.editor.text
        b.plane.gate.set()
        await b.until_still()
        assert "expected ';'" in b.panel
        assert "line 17:16" in b.panel


async def test_problems_are_marked_listed_and_gone_to(compiler: Compiler) -> None:
    async with bench() as b:
        b.plane.compiler = compiler
        await b.write(SOURCE.replace("u64 one = 1;", "u64 one = zork;"))
        await b.press("f5")
        assert "problem" in b.text, b.panel
        assert "line 17:15" in b.panel
        assert "17●" in b.text
        await b.press("f4")
        assert b.editor.has_focus
        assert b.editor.cursor_location == (16, 14)
        assert "undeclared identifier 'zork'" in b.title
        # From the list of problems too.
        b.editor.go_to(0)
        b.screen.set_focus(b.screen.panel)
        await b.press("enter")
        assert b.editor.cursor_location == (16, 14)


async def test_problems_of_headers_and_of_the_other_direction() -> None:
    async with bench() as b:
        b.plane.refusal = CompileError(
            "hello",
            [
                Diagnostic("packet.h", 88, 3, "error", "in the header"),
                Diagnostic("hello.egress.c", 9, 1, "error", "over there"),
                Diagnostic("", 0, 0, "note", "nowhere"),
            ],
        )
        await b.press("f5")
        assert "packet.h:88" in b.panel
        assert "egress line 9:1" in b.panel
        # No way leads into a header.
        b.screen.set_focus(b.screen.panel)
        await b.press("g", "enter")
        assert "hello.ingress.c" in b.title
        await b.press("f4")
        assert "hello.egress.c" in b.title
        assert b.editor.cursor_location == (8, 0)
        assert b.screen.listing.cursor_key == ("hello", "egress")


async def test_the_verifiers_log_is_folded_to_the_failing_path(compiler: Compiler) -> None:
    async with bench() as b:
        b.plane.compiler = compiler
        await b.write(REFUSED)
        await b.press("f5", "escape", "l")
        assert "because" in b.panel
        assert "invalid access to packet, off=26 size=4" in b.panel
        assert "with R1           pkt(r=14)" in b.panel
        assert "at line 23" in b.panel
        assert "after line 21" in b.panel
        assert "R10=fp0" not in b.panel
        await b.press("l")
        assert "R1=ctx() R10=fp0" in b.panel
        await b.press("l")
        b.screen.set_focus(b.screen.panel)
        await b.press("g", "enter")
        assert b.editor.cursor_location[0] == 22


def test_the_way_in_a_folded_log_has_no_branch_that_was_verified(compiler: Compiler) -> None:
    source = """
BPF_HASH(seen, u32, u64);
int watch(struct xdp_md *ctx)
{
    u32 key = bpf_get_prandom_u32();
    u64 *count;
    if (__builtin_expect(key > 7, 1)) {
        count = seen.lookup(&key);
        if (count)
            *count += 1;
        return XDP_PASS;
    }
    count = seen.lookup(&key);
    return *count;
}
"""
    with pytest.raises(CompileError) as refused:
        compiler.compile(source, ProgType.XDP, name="w.c")
    refusal = fold(refused.value.verifier_log)
    lines = [line for _, line in refusal.path]
    assert lines[0] == 5
    assert lines[-2:] == [7, 14]
    assert not {0, 9, 10, 11} & set(lines)
    assert refusal.instruction == "r1 = *(u64 *)(r0 +0)"
    assert refusal.registers.keys() == {"R0"}
    assert "map_value_or_null" in refusal.registers["R0"]
    assert refusal.reason == ("R0 invalid mem access 'map_value_or_null'",)


async def test_a_swap_that_loses_nothing_is_made_at_once() -> None:
    async with bench() as b:
        await b.press("f8")
        assert "there is nothing to swap in" in b.complaints[-1]
        edited = SOURCE + "// new\n"
        await b.write(edited)
        await b.press("f8")
        assert b.plane.running["hello"].config.ingress is not None
        assert b.plane.running["hello"].config.ingress.source == edited
        assert "generation 2 of hello runs; it took 3.10 ms" in b.complaints[-1]
        assert "generation 2 runs this" in b.title
        assert "2 (1)" in b.lines[4]
        await b.press("f9")
        assert changes(b.plane) == ["replace", "roll_back"]
        assert b.editor.text == SOURCE
        assert "generation 3 runs this" in b.title
        await b.press("f9")
        assert "no generation before" in b.complaints[-1]


async def test_a_swap_that_loses_something_says_so_before() -> None:
    async with bench() as b:
        b.plane.compatibility = LOSING
        await b.write(SOURCE + "// new\n")
        await b.press("f8")
        assert changes(b.plane) == []
        assert "f8 again swaps" in b.title
        for words in (
            "another verdict for a frame of 64 bytes", "ingress.totals    metric vanishes",
            "seen              starts empty        value 16 bytes, was 8",
            "old_totals        gone", "config            kept", "ingress.senders   new metric",
        ):  # fmt: skip
            assert words in b.panel, words
        # Another edit is another question.
        await b.write(SOURCE + "// newer\n")
        await b.press("f8")
        assert changes(b.plane) == []
        await b.press("f8")
        assert changes(b.plane) == ["replace"]


CUT = "ingress lets none of the test frames pass (XDP_ABORTED): eth0 receives nothing then"


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
async def test_a_program_that_cuts_off_its_interface_is_asked_about(
    tmp_path: Path, width: int, height: int
) -> None:
    """By a swap, by a first start, and each time anew."""
    file = tmp_path / "cut.json"
    file.write_text(json.dumps({"name": "cut", "ingress": {"interface": "eth0", "source": SOURCE}}))

    async def add() -> None:
        await b.press("a")
        b.screen.prompt.query_one("PromptInput").value = str(file)  # type: ignore[attr-defined]
        await b.press("enter")

    async with bench(width, height) as b:
        b.plane.cuts = (CUT,)
        await b.write(SOURCE + "// new\n")
        await b.press("f8")
        assert changes(b.plane) == []
        assert "no test frame passes; f8 again swaps" in b.title
        assert "XDP_ABORTED" in b.panel
        await b.press("f8")
        assert changes(b.plane) == ["replace"]
        assert "generation 2 runs this" in b.title

        await b.press("escape")
        await add()
        assert "cut" not in b.plane.running
        assert CUT in b.complaints[-1]
        assert "adding it again does it" in b.complaints[-1]
        await add()
        assert "cut" in b.plane.running


async def test_a_refused_source_is_not_swapped_in(compiler: Compiler) -> None:
    async with bench() as b:
        b.plane.compiler = compiler
        await b.write(REFUSED)
        await b.press("f8")
        assert changes(b.plane) == []
        assert "hello is not swapped: hello.ingress.c:23: error" in b.complaints[-1]
        assert "MODIFIED" in b.title


async def test_an_error_of_the_plane_is_told_and_nothing_is_stuck() -> None:
    async with bench() as b:
        await b.write(SOURCE + "// new\n")
        for error, said in (
            (ProbedeckError("the connection is gone"), "the connection is gone"),
            (ZeroDivisionError("oops"), "this failed: ZeroDivisionError: oops"),
        ):
            await b.press("f5")
            b.plane.refusal = error
            b.screen.model.verdicts["hello"] = b.screen.model.verdicts["hello"]
            await b.press("f8")
            assert said in b.complaints[-1]
            b.plane.refusal = None
        await b.press("f8")
        assert changes(b.plane)[-1] == "replace"
        assert "generation 2 runs this" in b.title


async def test_costs_are_measured_on_demand_and_grow_old() -> None:
    async with bench() as b:
        assert "41.3" not in b.text
        await b.press("m")
        assert "41.3" in b.lines[4]
        assert "55.0" in b.lines[5]
        assert "measured 41.3 ns/packet, generation 1 at" in b.title


async def test_probes_are_added_exported_and_removed(tmp_path: Path) -> None:
    file = tmp_path / "dns.json"
    file.write_text(json.dumps({"name": "dns", "ingress": {"interface": "eth0", "source": SOURCE}}))
    async with bench() as b:
        await b.press("a")
        b.screen.prompt.query_one("PromptInput").value = str(file)  # type: ignore[attr-defined]
        await b.press("enter")
        assert "dns" in b.plane.running
        assert "dns runs" in b.complaints[-1]
        await b.press("e", "x")
        assert "x again removes hello" in b.title
        assert "hello" in b.plane.running
        await b.press("x")
        assert "hello" not in b.plane.running
        assert "hello" not in b.title
        await b.press("a")
        b.screen.prompt.query_one("PromptInput").value = str(tmp_path / "none.toml")  # type: ignore[attr-defined]
        await b.press("enter")
        assert b.screen.prompt.mistaken
        assert b.screen.prompt.is_open


async def test_the_memory_in_use_is_shown_beside_its_limit() -> None:
    async with bench(140) as b:
        assert "memory 105 MiB of 256 MiB" in b.strip


async def test_read_only_refuses_each_change_with_its_reason() -> None:
    async with bench() as b:
        b.plane.read_only = "the console was started with --read-only"
        await b.write(SOURCE + "// new\n")
        for key, name in (
            ("f8", "program.swap"), ("f9", "program.rollback"), ("a", "probe.add"),
            ("x", "probe.remove"), ("e", "probe.export"),
        ):  # fmt: skip
            await b.press(key)
            assert b.complaints[-1] == f"{name} is refused: {b.plane.read_only}"
        assert changes(b.plane) == []
        b.app.show_status()
        await b.pilot.pause()
        assert "READ ONLY" in b.strip
        # A check changes nothing.
        await b.press("f5")
        assert "verified" in b.title


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
            seen.append(b.screen._panel.value)
        assert sorted(seen) == ["diff", "events", "log", "metrics", "problems", "report"]
        await b.press("f2")
        assert "hello.egress.c" in b.title
        await b.press("f2")
        assert "hello.ingress.c" in b.title
        await b.press("j", "j", "f2")
        assert "drop has no other direction" in b.complaints[-1]


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
        assert "gen 1" in b.strip
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
        await b.press("n")
        assert "no window has ended yet" in b.panel
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


def test_a_difference_is_as_small_as_it_can_be_and_never_slow() -> None:
    old = [f"line {n}" for n in range(30_000)]
    new = old.copy()
    new[15_000] = "other"
    assert list(unified(old, new)) == [
        "@@ -14998,7 +14998,7 @@", " line 14997", " line 14998", " line 14999", "-line 15000",
        "+other", " line 15001", " line 15002", " line 15003",
    ]  # fmt: skip
    everything = list(unified(old, [row + "x" for row in old]))
    assert len(everything) < 7000
    assert not list(unified(old, old))
    assert list(unified([], ["a"])) == ["@@ -1,0 +1,1 @@", "+a"]
