"""Checks of an edited source: problems, the verifier's log, and refused sources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.console.screens.programs.panels import fold
from bpf.abi import ProgType
from bpf.compiler import CompileError, Compiler, Diagnostic, client
from tests.app.console.fake_plane import SOURCE
from tests.app.console.screens.programs.bench import REFUSED, bench, changes


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with Compiler() as compiler:
        yield compiler


@pytest.mark.slow
async def test_a_check_says_what_it_found_while_typing_goes_on(compiler: Compiler) -> None:
    async with bench() as b:
        b.plane.compiler = compiler
        await b.press("f5")
        assert "verified in 26.0 ms" in b.title
        assert "would take 43.1 ns/packet" in b.title
        assert "No problems." in b.panel
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


async def test_without_a_compiler_the_screen_names_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "SYSTEM_PYTHON", "/nowhere/python3")
    with Compiler(stores=()) as missing:
        async with bench() as b:
            b.plane.compiler = missing
            await b.press("f5")
            said = " ".join(b.text.replace("│", " ").split())
            assert "no compiler is installed" in said
            assert "apt install" in said
            # The rest of the screen works on.
            await b.write(SOURCE)
            assert b.editor.text == SOURCE


@pytest.mark.slow
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
        # The verifier saw only the text before.
        while b.screen.source_panel.chosen.value != "log":
            await b.press("f3")
        assert "Not verified: see its problems." in b.panel


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


@pytest.mark.slow
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


async def test_a_refused_source_is_not_swapped_in(compiler: Compiler) -> None:
    async with bench() as b:
        b.plane.compiler = compiler
        await b.write(REFUSED)
        await b.press("f8")
        assert changes(b.plane) == []
        assert b.complaints[-1] == "hello is not swapped: see its problems"
        await b.press("f8")
        assert len(b.complaints) == 1
        assert "MODIFIED" in b.title
