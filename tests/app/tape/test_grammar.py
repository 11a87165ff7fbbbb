"""Lines of tapes: their meaning, and errors with their columns."""

from __future__ import annotations

import pytest

from app.commands.line import parse
from app.tape.condition import StateCondition
from app.tape.grammar import Source, Statement, TapeSetting, read
from app.tape.model import Requirement, TapeInstruction, TapeStep
from app.tape.steps import Action, Expect, Press, ScreenPattern, Sleep, Type, Wait
from bpf.errors import ProbedeckError

SAVED = {"web": "tcp dport:80,443"}


def only(line: str) -> Statement:
    statements, faults = read(line, "x.tape", SAVED)
    assert not faults, faults[0]
    assert len(statements) == 1
    return statements[0]


def instruction(line: str) -> TapeInstruction:
    step = only(line)
    assert isinstance(step, TapeStep)
    return step.instruction


def fault(line: str) -> tuple[int, str]:
    """Column and text of a line's error."""
    _, faults = read(line, "x.tape", SAVED)
    assert len(faults) == 1, line
    assert str(faults[0]).startswith("x.tape:1:")
    return faults[0].place.column, str(faults[0]).split(": ", 1)[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("Action flow.sort rate", Action(parse("flow.sort rate"))),
        ("  flow.sort rate  # bare", Action(parse("flow.sort rate"))),
        ("Action flow.filter host:/a#b/ # x", Action(parse("flow.filter host:/a#b/"))),
        ('probe.add "a # b.toml"', Action(parse('probe.add "a # b.toml"'))),
        ('Type "tcp  port:443"', Type("tcp  port:443")),
        ("Type 'say \"hi\"' # twice", Type('say "hi"')),
        ('Type `it\'s "x"`', Type('it\'s "x"')),
        (r'Type "a\n"', Type(r"a\n")),
        ('Type "a" b "c  d"', Type("a b c  d")),
        ("Type a\u00a0b\u3000", Type("a b")),
        ('Type@50ms "x"', Type("x", 0.05)),
        ('Type@0 "x"', Type("x", 0.0)),
        ("Enter", Press("enter")),
        ("Enter 2", Press("enter", 2)),
        ("Left@500ms 5", Press("left", 5, 0.5)),
        ("Left@0.5 5", Press("left", 5, 0.5)),
        ("Alt+.", Press("alt+full_stop")),
        ("PageDown", Press("pagedown")),
        ("F12", Press("f12")),
        ("Ctrl+P", Press("ctrl+p")),
        ("Ctrl+p 2", Press("ctrl+p", 2)),
        ("Ctrl+Alt+Shift+x", Press("alt+ctrl+shift+x")),
        ("Ctrl+Left@1s", Press("ctrl+left", 1, 1.0)),
        ("Ctrl++", Press("ctrl+plus")),
        ("Ctrl+@@50ms", Press("ctrl+at", 1, 0.05)),
        ("Alt+x", Press("alt+x")),
        ("Shift+Tab", Press("shift+tab")),
        ("Shift+a", Press("A")),
        ('Key "?"', Press("question_mark")),
        ("Key f20 3", Press("f20", 3)),
        ("Wait", Wait()),
        ("Wait@5s", Wait(None, 5.0)),
        ("Sleep 500ms", Sleep(0.5)),
        ("Sleep .5", Sleep(0.5)),
        ("Sleep 2", Sleep(2.0)),
        ("Sleep 1m", Sleep(60.0)),
    ],
)
def test_a_step_is_read(line: str, said: TapeInstruction) -> None:
    assert instruction(line) == said


@pytest.mark.parametrize(
    ("line", "pattern", "whole", "seconds"),
    [
        (r"Wait+Screen@5s /\d+ flows/", r"\d+ flows", True, 5.0),
        (r"Wait+Screen /a\/b # c/ # d", r"a\/b # c", True, None),
        ("Wait /x/", "x", True, None),
        ("Wait+Line@1m /x/", "x", False, 60.0),
        ("Expect /x/", "x", True, None),
        ("Expect+Screen /x/", "x", True, None),
        ("Expect+Line /x/", "x", False, None),
    ],
)
def test_something_to_be_seen_is_read(
    line: str, pattern: str, whole: bool, seconds: float | None
) -> None:
    said = instruction(line)
    until = said.condition if isinstance(said, Expect) else getattr(said, "until", None)
    assert isinstance(until, ScreenPattern)
    assert (until.pattern.pattern, until.whole) == (pattern, whole)
    assert getattr(said, "timeout", None) == seconds
    assert until.pattern.search("a/b # c\n12 flows x")


@pytest.mark.parametrize(
    ("line", "state", "sign", "value"),
    [
        ('Expect program.state == "ready"  # x', "program.state", "==", "ready"),
        ('Wait@5s program.state=="ready"', "program.state", "==", "ready"),
        ("Expect paused != true", "paused", "!=", True),
        ("Expect flow.count >= 3k", "flow.count", ">=", 3000.0),
        ("Expect flow.count<4", "flow.count", "<", 4.0),
        ("Expect rate > 1.5Mbit/s", "rate", ">", 1.5e6),
        ("Expect rate > 10k", "rate", ">", 1e4),
        ("Expect path.rtt <= 50ms", "path.rtt", "<=", 0.05),
        ("Expect path.loss < 5%", "path.loss", "<", 0.05),
        ('Expect flow.filter == ""', "flow.filter", "==", ""),
        ('Expect trigger.state.my-flood == "cooldown"', "trigger.state.my-flood", "==", "cooldown"),
        ("Expect trigger.value.flood > -2", "trigger.value.flood", ">", -2.0),
    ],
)
def test_a_condition_is_read(line: str, state: str, sign: str, value: object) -> None:
    said = instruction(line)
    condition = said.condition if isinstance(said, Expect) else getattr(said, "until", None)
    assert isinstance(condition, StateCondition)
    assert (condition.state, condition.operator, condition.value) == (state, sign, value)


@pytest.mark.parametrize(
    ("line", "actual", "holds"),
    [
        ('Expect view == "flows"', "flows", True),
        ('Expect view == "flows"', None, False),
        ('Expect view != "flows"', None, True),
        ("Expect message =~ /^no .*flow$/", "one\nno such flow", True),
        ("Expect message =~ /flow$/", None, False),
        ("Expect message !~ /flow$/", "one flow", False),
        ("Expect message !~ /flow$/", "two", True),
        ("Expect message !~ /flow$/", None, True),
        ("Expect lost == 0", 0, True),
        ("Expect path.loss == 7%", 0.07, True),
        ("Expect path.loss != 7%", 0.07, False),
        ("Expect path.rtt < 1ms", None, False),
        ("Expect paused == false", False, True),
        ("Expect flow.count > 2", 3, True),
    ],
)
def test_a_condition_is_compared(line: str, actual: str | float | None, holds: bool) -> None:
    said = instruction(line)
    assert isinstance(said, Expect)
    assert isinstance(said.condition, StateCondition)
    assert said.condition.holds(actual) is holds


def test_a_search_that_would_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.tape.condition.LONGEST", 0.05)
    said = instruction("Expect message =~ /(a+)+!/")
    assert isinstance(said, Expect)
    assert isinstance(said.condition, StateCondition)
    with pytest.raises(ProbedeckError, match="the search took more"):
        said.condition.holds("a" * 60)


def test_what_is_no_step_is_read() -> None:
    assert read("\n# x\n \t# y\r\n", "x", SAVED)[0] == []
    requires = only("Require console >= 0.3")
    assert isinstance(requires, Requirement)
    assert (requires.program, requires.operator, requires.version) == ("console", ">=", "0.3")
    requires = only("Require console!=0.3")
    assert isinstance(requires, Requirement)
    assert (requires.program, requires.operator) == ("console", "!=")
    requires = only('Require "dig"')
    assert isinstance(requires, Requirement)
    assert (requires.program, requires.operator) == ("dig", "")
    settings = [only(f"Set {text}") for text in ("WaitTimeout 5s", "TypingSpeed 0.1", "Width 80")]
    assert [(s.name, s.value) for s in settings if isinstance(s, TapeSetting)] == [
        ("WaitTimeout", 5.0), ("TypingSpeed", 0.1), ("Width", 80),
    ]  # fmt: skip
    source = only("Source common.tape # x")
    assert isinstance(source, Source)
    assert source.path == "common.tape"


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("ACTION view.flows", 1, "did you mean Action?"),
        ("Enterr", 1, "there is no verb or command 'Enterr'; did you mean Enter?"),
        ("  action view.flows", 3, "did you mean Action?"),
        ("Waitt+Screen /x/", 1, "did you mean Wait?"),
        ("???", 1, "verbs are"),
        ("flow.srot rate", 1, "there is no command 'flow.srot'; did you mean flow.sort?"),
        ("Action flow.sort byts", 18, "there is no column 'byts'; did you mean bytes?"),
        ("Action flow.sort bytes rate", 24, "usage: flow.sort [COLUMN]"),
        ("Action", 7, "a command is missing"),
        ("Action macro.play x", 8, "Source plays another"),
        ("Type", 5, "text to type is missing"),
        ('Type "x', 6, "this quotation has no end"),
        ('Type "x\u202e"', 8, "'\\u202e' cannot be typed"),
        ('Type "x"y', 9, "without a space"),
        ('Type@x "a"', 6, "'x' is not a number"),
        ("Type \x1b[31m", 6, "control character"),
        ("Enter 0", 7, "no whole number from 1"),
        ("Enter x", 7, "no whole number"),
        ("Enter 2 3", 9, "Enter takes no '3'"),
        ("Enter+x", 6, "Enter takes no '+x'"),
        ("Ctrl", 1, "Ctrl needs a key"),
        ("Ctrl+", 1, "Ctrl needs a key"),
        ("Ctrl+Lefft", 6, "there is no key 'Lefft'; did you mean Left?"),
        ("Ctrl+x+Alt", 6, "'x' is not held"),
        ("Ctrl+I", 6, "terminals send 'ctrl+i' as tab"),
        ('Key "entre"', 5, "there is no key 'entre'; did you mean enter?"),
        ("Key", 4, "a key is missing"),
        ("Wait+Foo", 5, "there are Wait+Screen and Wait+Line"),
        ("Wait@0s", 6, "0s is not more than 0"),
        ("Sleep 25000m", 7, "25000m is more than a day"),
        ("Wait@5x", 7, "'x' is no unit here; units are ns, us, ms, s, m, h, d"),
        ("Wait+Screen", 12, "a regular expression is missing"),
        ("Wait+Screen /x", 13, "this regular expression has no end"),
        ("Wait+Screen /a(/", 15, "missing )"),
        ("Wait+Screen /a/ x", 17, "takes no 'x'"),
        ("Expect", 7, "a named state is missing"),
        ("Expect flow.cuont > 3", 8, "there is no state 'flow.cuont'; did you mean flow.count?"),
        ("Expect flow.count", 18, "a comparison is missing; flow.count is a number: == != <"),
        ("Expect flow.count = 3", 19, "not compared by ="),
        ("Expect flow.count =~ /3/", 19, "not compared by =~"),
        ("Expect paused < true", 15, "paused is true or false: == !="),
        ("Expect paused == yes", 18, "not 'yes'"),
        ("Expect flow.count > 3 4", 23, "Expect takes no '4'"),
        ("Expect flow.count >", 20, "needs a value; such as flow.count > 3"),
        ('Expect flow.count > "3"', 21, "'\"3\"' is not a number; units are k, M"),
        ("Expect rate > 3ms", 16, "'ms' is no unit here; "),
        ("Expect view == flows", 16, "compared with text in quotes"),
        ('Expect program.state == "redy"', 25, "never 'redy'; did you mean ready?"),
        ('Expect view =~ "flows"', 16, "a regular expression is missing"),
        ("Sleep", 6, "a duration is missing"),
        ("Sleep 5 6", 9, "Sleep takes no '6'"),
        ("Sleep@5s 1", 6, "Sleep takes no time"),
        ("Export flowz x.csv", 8, "there is no view 'flowz'; did you mean flows?"),
        ("Export flows", 13, "a file is missing"),
        ("Export overview x.csv", 17, "overview has no table; a picture of it ends in .svg"),
        ("Export flows ~nobody_at_all/x.csv", 14, "there is no such user"),
        ("Export flows x.xml", 14, "x.xml: no format is called .xml; there are .csv, .json"),
        ("Screenshot x.csv", 12, "x.csv: no format is called .csv; did you mean .svg?"),
        ("Set Widht 80", 5, "there is no setting 'Widht'; did you mean Width?"),
        ("Set Width 1200", 11, "Width '1200' is not 20 to 1000 columns"),
        ("Set WaitTimeout", 16, "a duration is missing"),
        ("Set", 4, "a setting is missing"),
        ("Require", 8, "a program is missing"),
        ("Require console >= x", 20, "'x' is no version"),
        ("Require console 0.3", 17, "a comparison is missing"),
        ("Require console => 0.3", 17, "versions are not compared by =>; such as console >= 0.3"),
        ("Require dig >= 9", 9, "the version of 'dig' is not looked at; Require dig looks"),
        ("Require consle >= 9", 9, "'consle' is not looked at; did you mean console?"),
        (f"Require console >= {'9' * 5000}", 20, "is no version"),
        ("Source", 7, "a tape is missing"),
        ("Source a.tape b.tape", 15, "Source takes no 'b.tape'"),
    ],
)
def test_a_mistake_has_its_column_and_what_to_do(line: str, column: int, words: str) -> None:
    at, said = fault(line)
    assert words in said
    assert at == column


@pytest.mark.parametrize(
    ("line", "column", "words"),
    [
        ("Action flow.filter dport:xx", 26, "'xx' is not a port"),
        ("Action flow.filter dprt:1 # x", 20, "flows have no 'dprt'; did you mean dport?"),
        ("  flow.filter  tcp (udp", 20, "'(' is not closed"),
        ("flow.filter @wbe", 13, "no filter is saved as 'wbe'"),
        ("flow.capture rtt>5", 14, "can't choose what is captured"),
        ("path.filter loss<5% hop<=x", 26, "'x' is not a number"),
        ("event.filter severity:bad", 23, "there is no severity 'bad'"),
        ("trigger.add flood flows > 500", 30, "has no ':'; a policy is NAME: CONDITION"),
        ("trigger.add flood: flos > 5 -> heavy_hitters", 20, "did you mean flows?"),
        ("path.trace 224.0.0.1", 12, "cannot trace 224.0.0.1"),
        ("path.untrace router1", 14, "'router1' is no address"),
        ("view.export x.xls", 13, "x.xls: no format is called .xls"),
        ("view.columns source rtd", 14, "no table has a column 'rtd'; did you mean rtt?"),
        ("view.columns source hop", 14, "no table has all of source, hop"),
        ("view.columns source,source", 14, "column 'source' is there twice"),
        ("layout.load ../x", 13, "'../x' cannot be the name of a layout"),
    ],
)
def test_a_value_that_no_console_takes_is_told_before(line: str, column: int, words: str) -> None:
    at, said = fault(line)
    assert words in said
    assert at == column


@pytest.mark.parametrize(
    "line",
    [
        "flow.filter @web rtt>50",
        'flow.filter ""',
        "flow.filter",
        "flow.capture @web",
        "path.filter rtt>50ms hop<=5",
        "event.filter severity:warning,error /lost/",
        "trigger.add flood: flows > 500 -> mine",
        "path.trace example.org",
        "path.trace 2001:db8::1",
        'view.export "a b/c.CSV"',
        "view.columns usual",
        "view.columns hop, host",
        "layout.save night",
        "Export overview x.svg",
    ],
)
def test_a_value_that_a_console_may_take_is_left_to_it(line: str) -> None:
    only(line)


def test_every_line_that_is_wrong_is_told() -> None:
    text = "Enterr\nEnter\n\nType\nSleep 1s\nWait@x"
    statements, faults = read(text, "y.tape", SAVED)
    assert [fault.place.line for fault in faults] == [1, 4, 6]
    assert len(statements) == 2
