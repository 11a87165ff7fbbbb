"""Variables, blocks, events and golden files of tapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.tape.line import variables_of
from app.tape.load import load, of_text
from app.tape.model import StepError, TapeError
from app.tape.options import Startup
from bpf.errors import UsageError
from probes.snapshot import Event
from tests.app.console.fake import Desk, desk, flow
from tests.app.tape.test_player import failure, play


def faults(text: str, **variables: str) -> list[str]:
    with pytest.raises(TapeError) as caught:
        of_text(text, "x.tape", variables=variables)
    return [str(fault).partition(": ")[2] for fault in caught.value.faults]


def lines(text: str, **variables: str) -> list[str]:
    return [step.text for step in of_text(text, "x", variables=variables).steps]


def test_variables_stand_anywhere_in_a_line() -> None:
    text = '# $NO\nAction flow.filter host:$HOST\nType "${HOST}x $$HOME /a$/"'
    assert lines(text, HOST="10.0.0.1") == [
        "Action flow.filter host:10.0.0.1", 'Type "10.0.0.1x $HOME /a$/"',
    ]  # fmt: skip


def test_an_unknown_variable_has_its_place() -> None:
    with pytest.raises(TapeError) as caught:
        of_text("Enter\nType $HOTS", "x.tape", variables={"HOST": "a"})
    assert str(caught.value) == "x.tape:2:6: there is no variable '$HOTS'; did you mean HOST?"
    assert faults("Type ${A") == ["there is no variable '${A'; --set A=VALUE gives it a value"]
    with pytest.raises(UsageError, match="NAME=VALUE"):
        variables_of(["1=2"])
    assert variables_of(["A=b=c", "B="]) == {"A": "b=c", "B": ""}


def test_mistakes_come_in_the_order_of_lines_with_those_of_sources(tmp_path: Path) -> None:
    other = tmp_path / "other.tape"
    other.write_text("Entr\n")
    tape = tmp_path / "x.tape"
    tape.write_text('Enter\nSource "other.tape"\nElse\nEntr\nSet Width 100\nAction flow.srt\n')
    with pytest.raises(TapeError) as caught:
        load(tape)
    places = [(Path(fault.place.file).name, fault.place.line) for fault in caught.value.faults]
    assert places == [("other.tape", 1), ("x.tape", 3), ("x.tape", 4), ("x.tape", 5), ("x.tape", 6)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Repeat 2\nEnter", "Repeat has no End"),
        ("Else", "there is no If before this Else"),
        ("Repeat 2\nElse\nEnd", "there is no If before this Else"),
        ('If view == "flows"\nElse\nElse\nEnd', "there is no If before this Else"),
        ("Repeat", "Repeat needs a number; such as Repeat 3"),
        ("Repeat 9999\nEnter\nEnter\nEnd", "this repeats to more than 10000 steps"),
        ("If vew == 1\nEnd", "there is no state 'vew'; did you mean view?"),
        ("On burst Source x", "an event is missing; such as On policy NAME, or On /RE/"),
        ("On policy burst x", 'Source is missing; such as On policy burst Source "x.tape"'),
        ("On policy burst Source no.tape", "tape 'no.tape': No such file or directory"),
    ],
)
def test_what_is_wrong_with_a_block(text: str, words: str) -> None:
    assert words in faults(text)


def test_repeats_are_nested() -> None:
    assert lines("Repeat 2\nUp\nRepeat 2\nDown\nEnd\nEnd\nEnter") == [
        "Up", "Down", "Down", "Up", "Down", "Down", "Enter",
    ]  # fmt: skip
    assert lines("End 2\nEnd") == ["End 2", "End"], "the key"


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ('If flow.count > 2\nDown\nElse\nDown 2\nEnd', "10.0.0.2:40002"),
        ('If flow.count < 2\nDown\nElse\nDown 2\nEnd', "10.0.0.3:40003"),
        ('If flow.count < 2\nDown\nEnd', "10.0.0.1:40001"),
        ('Repeat 2\nIf paused == false\nDown\nspace\nEnd\nEnd'.replace("space", 'Key "space"'),
         "10.0.0.2:40002"),
    ],
)  # fmt: skip
async def test_if_takes_one_way(text: str, source: str) -> None:
    async with desk() as console:
        await console.feed(flow(1, 30), flow(2, 20), flow(3, 10))
        await play(console, f'view.flows\nHome\n{text}\nExpect flow.source == "{source}"')


async def _event(console: Desk, text: str, subject: str, phase: str) -> None:
    console.controller.publish(Event.now("warning", "monitor", text, subject, phase))
    await console.still()
    console.app.refresh_view()


async def test_on_plays_a_tape_when_a_policy_fires(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.tape"
    evidence.write_text("view.events\n")
    async with desk() as console:
        await console.feed(flow(1, 30))
        tape = f'On policy burst Source "{evidence}"\nview.flows\nWait@5s view == "events"'
        playing = console.app.run_worker(play(console, tape))
        for _ in range(200):
            await console.pilot.pause(0.01)
            if console.app.tapes._player is not None and console.app.tapes._player.number == 3:
                break
        await _event(console, "burst ended", "policy burst", "end")
        await _event(console, "other fired", "policy other", "begin")
        await console.pilot.pause(0.1)
        assert console.app.current_mode == "flows"
        await _event(console, "burst fired", "policy burst", "begin")
        await playing.wait()
        assert console.app.current_mode == "events"


async def test_a_failing_reaction_names_its_own_line(tmp_path: Path) -> None:
    (tmp_path / "e.tape").write_text("view.events\nExpect paused == true\n")
    async with desk() as console:
        await console.feed(flow(1, 30))
        tape = f'On /fired/ Source "{tmp_path}/e.tape"\nSleep 5s'
        playing = console.app.run_worker(failure(console, tape))
        for _ in range(200):
            await console.pilot.pause(0.01)
            if console.app.tapes._player is not None and console.app.tapes._player.number == 2:
                break
        await _event(console, "fired", "", "")
        assert "e.tape:2: Expect paused == true: it is false" in await playing.wait()


def test_a_reaction_that_changes_what_runs_needs_the_right(tmp_path: Path) -> None:
    (tmp_path / "e.tape").write_text("flow.capture tcp\n")
    tape = of_text(f'On policy a Source "{tmp_path}/e.tape"', "x.tape")
    with pytest.raises(StepError, match="--allow-write"):
        Startup(tape).check()
    Startup(tape, allow_write=True).check()


async def test_compare_holds_a_screen_against_a_golden_file(tmp_path: Path) -> None:
    golden = tmp_path / "golden" / "flows.txt"
    text = f'view.flows\nCompare "{golden}" /\\d+ ?s|LIVE.*/'
    async with desk(100, 20) as console:
        await console.feed(flow(1, 30))
        assert "--update-golden writes it" in await failure(console, text)
        app = console.app
        app.tapes.startup = Startup(updates_golden=True)
        await app.tapes._played(of_text(text, "x.tape"))
        assert "10.0.0.1:40001" in golden.read_text()
        await play(console, text)
        golden.write_text(golden.read_text().replace("40001", "40009"))
        assert "line 3 of the screen differs" in await failure(console, text)


async def test_quotes_around_a_whole_value_are_no_part_of_it() -> None:
    async with desk() as console:
        await console.feed(flow(1, 30), flow(2, 20, proto=17))
        await play(console, 'Action flow.filter "proto:tcp"\nExpect flow.count == 1')
    assert faults('Action flow.filter "proto:tcpp"') != []


async def test_the_recorder_writes_the_column_that_a_sort_reached() -> None:
    async with desk() as console:
        await console.feed(flow(1, 30))
        await console.press("3", "Q", "s", "s")
        recorder, reached = console.app.tapes._recorder, console.table.sort  # type: ignore[attr-defined]
        assert recorder is not None
        assert recorder.text().splitlines()[-1] == f"Action flow.sort {reached}"
