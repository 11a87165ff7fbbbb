"""Programs that are swapped, rolled back, added, exported and removed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.console.screens.programs.panels import unified
from bpf.errors import ProbedeckError
from tests.app.console.fake_plane import LOSING, SOURCE
from tests.app.console.screens.programs.bench import bench, changes


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


@pytest.mark.slow
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


@pytest.mark.slow
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
