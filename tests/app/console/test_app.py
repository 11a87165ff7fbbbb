"""Parts common to all screens: help, palette, events, theme, complaints, the end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.console.dialogs.program_info import ProgramInfoScreen
from app.console.status import title
from bpf.errors import KernelError, ProbedeckError, UsageError
from probes.reports import BudgetUse, Cost, MemoryUse
from probes.snapshot import Event, HookStatus, Loss, LossReason
from tests.app.console.fake import desk, flow
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffScreen

NASTY = "[/red] [bold]x[/] \x1b[31m \x9b31m \u202e 漢字 e\u0301 \udc80 \n"


@pytest.mark.parametrize("width", [80, 120])
async def test_the_footer_is_whole(width: int) -> None:
    async with desk(width, 24) as console:
        for word in ("/ Filter", "v View", "space Pause", "? Keys", "q Quit"):
            assert word in console.lines[-1]
        # Names of the other screens if they fit; never numbers without a name.
        screens = ("1-6 Screens", "1 Overview 2 Paths 4 Triggers 5 Programs 6 Events")[width > 80]
        assert screens in console.lines[-1]
        assert len(console.lines[-1]) == width


@pytest.mark.slow
async def test_nothing_that_is_turned_to_has_the_whole_terminal_drawn_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[object] = []
    async with desk(80, 24) as console:
        await console.feed(flow(1, 10))
        monkeypatch.setattr(DiffScreen, "refresh_terminal", lambda screen: drawn.append(screen))
        for key in ("1", "2", "4", "5", "6", "3", "question_mark", "ctrl+p", "vertical_line"):
            await console.press(key, "escape")
            assert not drawn, key
        await console.pilot.resize_terminal(100, 30)
        await console.still()
        assert drawn


async def test_events_are_newest_first_and_the_cursor_stays() -> None:
    async with desk() as console:
        await console.press("6")
        assert "nothing has happened yet" in console.text
        console.controller.publish(Event(1_700_000_000_123_000_000, "info", "eth0", "xdp: native"))
        await console.feed(flow(1, 1), losses={LossReason.TABLE_FULL: Loss(5, 300)})
        assert "packets lost in window 1: 5 table full" in console.lines[3]
        assert console.lines[4].split() == ["22:13:20.123", "info", "eth0", "xdp:", "native"]
        assert "2 groups" in console.strip
        await console.press("j")
        console.controller.publish(Event.now("error", "flow", "later"))
        await console.still()
        assert "later" in console.lines[3]
        table = console.app.screen.query_one(VirtualTable)
        assert "xdp: native" in table.source.cells(table.cursor_index)


async def test_what_is_not_lost_is_not_called_lost() -> None:
    async with desk() as console:
        await console.feed(flow(1, 1), losses={LossReason.NOT_IP: Loss(9)})
        assert "lost 0" in console.strip


async def test_no_text_can_break_the_screen() -> None:
    async with desk() as console:
        console.controller.publish(Event.now("error", NASTY, NASTY))
        console.app.complain(ProbedeckError(NASTY))
        console.controller.ended = ProbedeckError(NASTY)
        await console.press("6")
        await console.still()
        assert "[/red] [bold]x[/] ·[31m" in console.text
        for line in console.lines:
            assert "\x1b" not in line
            assert "\x9b" not in line
        await console.press("3", "slash")
        await console.type("[/x]")
        await console.press("enter")
        assert "'[/x]' is not understood" in console.text


async def test_the_theme_changes_and_back() -> None:
    async with desk() as console:

        def theme() -> bool:
            return console.app.current_theme.dark

        before = theme()
        await console.press("t")
        assert theme() != before
        await console.press("t")
        assert theme() == before


@pytest.mark.slow
async def test_quit_ends_with_0() -> None:
    async with desk() as console:
        await console.press("q")
        assert console.app.return_value == 0


async def test_programs_open_and_close() -> None:
    async with desk() as console:
        await console.press("i")
        assert "Maps take " in console.text
        await console.press("escape")
        assert not isinstance(console.app.screen, ProgramInfoScreen)


async def test_the_cost_of_each_probe_is_its_time_for_a_syn_at_the_present_rate() -> None:
    async with desk() as console:
        await console.feed(flow(1, 8_000, size=100))

        def cost(name: str) -> Sequence[Cost]:
            if name == "monitor":
                raise UsageError("it has no program")
            return Cost("ingress", 41.3), Cost("egress", 38.7)

        info = ProgramInfoScreen(
            (), MemoryUse(0, 1 << 20), lambda: console.app.time.frame.pulses,
            lambda: BudgetUse(0.25, 0.01), cost,
        )  # fmt: skip
        await console.app.push_screen(info)
        await console.app.workers.wait_for_complete()
        info._show()
        await console.still()
        (row,) = (line.split("│")[1].split() for line in console.lines if "41+39" in line)
        # 10,000 incoming packets a second of 41.3 ns.
        assert row[-5:] == ["6.0", "%", "41+39", "<0.1", "%"]


@pytest.mark.parametrize(
    ("error", "said", "code"),
    [
        (KernelError("no XDP here", hint="use --ingress tc"), "no XDP here; use", 4),
        (ZeroDivisionError("oops"), "the probes did not start: ZeroDivisionError: oops", 1),
    ],
)
async def test_a_probe_that_does_not_start_ends_the_console(
    error: Exception, said: str, code: int
) -> None:
    async with desk() as console:

        def fail() -> None:
            raise error

        console.app._start = fail
        console.app._start_probes()
        await console.still()
        assert said in str(console.app.failure)
        assert console.app.return_value == code


@pytest.mark.parametrize("width", [80, 120])
async def test_a_program_that_runs_before_ours_is_in_the_status_strip(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    hooks = (
        HookStatus(
            "eth0", "tc ingress", "tcx", "why", ("TCX program 'fw' id 7", "XDP program 'a'")
        ),
        HookStatus("eth0", "tc egress", "tcx", "", ("TCX program 'fw' id 7",)),
    )
    async with desk(width, 24) as console:
        monkeypatch.setattr(console.controller, "hook_status", lambda: hooks)
        await console.feed(flow(1, 10))
        console.app.show_status()
        await console.still()
        assert "eth0 tcx" in console.strip
        assert "behind TCX program 'fw' id 7 and 1 more" in console.strip
        assert "lost 0" in console.strip
        removed = (HookStatus("eth0", "tc ingress", "removed"),)
        monkeypatch.setattr(console.controller, "hook_status", lambda: removed)
        console.app.show_status()
        await console.still()
        assert "eth0 removed" in console.strip
        assert "behind" not in console.strip


async def test_the_title_of_the_terminal_tells_the_gravest_event_that_goes_on() -> None:
    async with desk() as console:
        await console.feed(flow(1, 10))
        at = 388 * 10**9
        for event in (
            Event(at, "error", "path", "gone", "main", "begin"),
            Event(at + 1, "info", "path", "back", "main", "end"),
            Event(at, "warning", "monitor", "a: x scans y", "policy a", "begin"),
            Event(at + 10**9, "warning", "monitor", "b: z floods y", "policy b", "begin"),
            Event(at + 2 * 10**9, "info", "monitor", "b goes on", "policy b"),
            Event(at + 3 * 10**9, "warning", "path", "7 lost"),
        ):
            console.controller.publish(event)
        await console.still()
        assert title(console.app, "eth0") == "b: z floods y, since 00:06:29"
        console.app.event_marks.muted.add(("monitor", "policy b"))
        assert title(console.app, "eth0") == "a: x scans y, since 00:06:28"
        console.app.event_marks.muted.add(("monitor", "policy a"))
        assert title(console.app, "eth0") == "probedeck eth0"


async def test_a_remote_console_names_the_interface_first_and_then_the_address() -> None:
    async with desk() as console:
        await console.feed(flow(1, 10))
        console.app._where = "unix:/run/probedeck/api.sock"
        console.app.show_status()
        await console.still()
        assert "eth0 native" in console.strip
        assert "at unix:/run/probedeck/api.sock" in console.strip
