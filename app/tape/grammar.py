"""The lines of a tape: one step, setting, requirement, source, or line of a block each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from app.commands.model import Saved
from app.commands.registry import REGISTRY
from app.tape.condition import COMPARED, EventPattern, StateCondition, read_condition
from app.tape.line import MODIFIERS, VERBS, TapeLine, duration, expanded
from app.tape.model import (
    Fault,
    Forms,
    LineHead,
    Requirement,
    TapeInstruction,
    TapePlace,
    TapeStage,
    TapeStep,
)
from app.tape.steps import STEPS, Action, Press, Wait
from bpf.errors import TextError, did_you_mean

REPEAT, IF, ELSE, END, ON = "Repeat", "If", "Else", "End", "On"
BLOCKS: dict[str, Forms] = {
    REPEAT: (("Repeat N", "Play the lines up to End N times."),),
    IF: (
        ("If STATE OPERATOR VALUE", "Play the lines up to Else or End only if the state has the "
         "value then; see Expect."),
    ),
    ELSE: (("Else", "Play the lines up to End if the condition of If does not hold."),),
    END: (("End", "End of Repeat or If; outside of them End is the key."),),
    ON: (
        ("On policy NAME Source FILE", "From here on: when the policy fires, play another tape's "
         "steps before the next step, also during Sleep and Wait. One at a time."),
        ("On /RE/ Source FILE", "The same after each event whose text matches."),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class BlockLine:
    """A line that begins, divides or ends a block, or an `On`."""

    place: TapePlace
    text: str
    verb: str
    count: int = 1
    condition: StateCondition | None = None
    event: EventPattern | None = None
    path: str = ""
    path_place: TapePlace | None = None

    @classmethod
    def read(cls, line: TapeLine, place: TapePlace, verb: str, begin: int) -> BlockLine:
        """Read the values after the verb."""

        def made(**values: object) -> BlockLine:
            return cls(place, line.text[begin : line.at].strip(), verb, **values)  # type: ignore[arg-type]

        if verb == REPEAT:
            if line.over:
                line.refuse("Repeat needs a number", hint="such as Repeat 3")
            return made(count=line.count())
        if verb == IF:
            return made(condition=read_condition(line))
        if verb != ON:
            return made()
        event = _event(line)
        line.skip()
        at = line.at
        if line.word() != "Source":
            line.refuse("Source is missing", at, hint='such as On policy burst Source "x.tape"')
        line.skip()
        where = TapePlace(place.file, place.line, line.at + 1)
        path = line.text_or_word("a tape")
        return made(event=event, path=path, path_place=where)


def _event(line: TapeLine) -> EventPattern:
    if line.text[line.at : line.at + 1] == "/":
        return EventPattern(pattern=line.pattern())
    at = line.at
    if line.word() != "policy":
        line.refuse("an event is missing", at, hint="such as On policy NAME, or On /RE/")
    line.skip()
    return EventPattern(line.text_or_word("a policy"))


@dataclass(frozen=True, slots=True)
class Skip(TapeInstruction):
    """The jump of `If` or `Else`: it leaves out steps unless a condition holds."""

    steps: int
    condition: StateCondition | None = None
    forms = ()
    settles = False

    async def play(self, stage: TapeStage) -> None:
        if (wanted := self.condition) is None or not wanted.holds(stage.state(wanted.state)):
            stage.skip(self.steps)


@dataclass(frozen=True, slots=True)
class React(TapeInstruction):
    """`On`: from here on, steps follow each such event."""

    event: EventPattern
    steps: Sequence[TapeStep]
    forms = ()
    settles = False

    async def play(self, stage: TapeStage) -> None:
        stage.react(self.event, self.steps)

    @property
    def writes(self) -> bool:
        return any(step.instruction.writes for step in self.steps)


@dataclass(frozen=True, slots=True)
class TapeSetting:
    """`Set WaitTimeout 5s`."""

    place: TapePlace
    name: str
    value: float


@dataclass(frozen=True, slots=True)
class Source:
    """`Source common.tape`."""

    place: TapePlace
    path: str


Statement: TypeAlias = "TapeStep | TapeSetting | Requirement | Source | BlockLine"

_HEAD = re.compile(r"([A-Za-z]\w*)((?:\+(?:[^\s+@]+|[+@])?)*)(?:@(\S*))?")
"""A verb, words joined with plus signs, and a time."""
NONE: Saved = {}
PROGRAMS = ("probedeck", "console")
"""Names of this program for `Require`."""
_PROGRAM = re.compile(r"[^\s=!<>]+")
_OPERATOR = re.compile(r"[=!<>]+")
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9})*", re.ASCII)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")
_SIZES = {"Width": (20, 1000), "Height": (5, 500)}
"""Smallest and largest value, in characters."""
SETTINGS = ("WaitTimeout", "TypingSpeed", *_SIZES)


def read(
    text: str, file: str, saved: Saved, variables: Saved = NONE
) -> tuple[list[Statement], list[Fault]]:
    """Return the lines of a tape, and the mistakes of other lines. `saved` are filters by name,
    `variables` the values of `$NAME`."""
    statements: list[Statement] = []
    faults: list[Fault] = []
    depth = 0
    for number, content in enumerate(text.split("\n"), 1):
        line = TapeLine(content.removesuffix("\r"))
        try:
            line = TapeLine(expanded(line, variables))
            if found := _UNPRINTABLE.search(line.text):
                line.refuse(f"there is a control character, {found[0]!a}", found.start())
            if not line.over:
                place = TapePlace(file, number, line.at + 1)
                one = _statement(line, place, saved, in_block=depth > 0)
                if isinstance(one, BlockLine):
                    depth += (one.verb in (REPEAT, IF)) - (one.verb == END)
                statements.append(one)
        except TextError as refusal:
            place = TapePlace(file, number, refusal.column)
            faults.append(Fault(place, refusal.problem, refusal.hint))
    return statements, faults


def _statement(line: TapeLine, place: TapePlace, saved: Saved, *, in_block: bool) -> Statement:
    begin = line.at
    word = line.word()
    head = _HEAD.fullmatch(word)
    if (head is None and "." in word) or word in REGISTRY:
        line.at = begin
        return _step(line, begin, place, Action.read(line, LineHead("", None, begin, saved)))
    verb, joined, time = head.groups() if head else (word, "", None)
    if verb in MODIFIERS:
        return _step(line, begin, place, Press.read_held(line, begin, verb, joined, time))
    if verb not in STATEMENTS and verb not in VERBS:
        names = (*STATEMENTS, *VERBS, *MODIFIERS, *REGISTRY)
        hint = did_you_mean(verb, names, f"verbs are {', '.join(STATEMENTS)} and keys")
        line.refuse(f"there is no verb or command {word!r}", begin, hint=hint)
    step = STEPS.get(verb)
    if joined and not (step and step.joins):
        line.refuse(f"{verb} takes no {joined!r}", begin + len(verb))
    if time is not None and verb not in VERBS and not (step and step.timed):
        line.refuse(f"{verb} takes no time", begin + len(verb) + len(joined))
    at = begin + len(word) - len(time or "")
    seconds = None if time is None else duration(line, at, time, zero=step is not Wait)
    line.skip()
    # Outside of blocks, End is the key.
    if verb in VERBS and not (verb == END and in_block):
        return _step(line, begin, place, Press(VERBS[verb], line.count(), seconds))
    if step:
        opening = LineHead(joined, seconds, begin + len(verb), saved)
        return _step(line, begin, place, step.read(line, opening))
    if verb in BLOCKS:
        block = BlockLine.read(line, place, verb, begin)
        line.end(verb)
        return block
    other = _OTHERS[verb][0](line, place)
    line.end(verb)
    return other


def _step(line: TapeLine, begin: int, place: TapePlace, instruction: TapeInstruction) -> TapeStep:
    text = line.text[begin : line.at].strip()
    line.end(text.split()[0])
    return TapeStep(place, text, instruction)


# Lines that are no steps


def _set(line: TapeLine, place: TapePlace) -> TapeSetting:
    begin = line.at
    name = line.word()
    if name not in SETTINGS:
        what = f"there is no setting {name!r}" if name else "a setting is missing"
        line.refuse(what, begin, hint=did_you_mean(name, SETTINGS))
    line.skip()
    if name not in _SIZES:
        return TapeSetting(place, name, line.duration(zero=name == "TypingSpeed"))
    begin, text = line.at, line.word()
    least, most = _SIZES[name]
    if not (text.isascii() and text.isdigit() and len(text) < 5 and least <= int(text) <= most):
        what = "columns" if name == "Width" else "lines"
        line.refuse(f"{name} {text!r} is not {least} to {most} {what}", begin)
    return TapeSetting(place, name, int(text))


def _require(line: TapeLine, place: TapePlace) -> Requirement:
    at = line.at
    if not (program := line.string() if line.quote_ahead else line.take(_PROGRAM)):
        line.refuse("a program is missing", hint=f"such as Require {PROGRAMS[0]} >= 0.3")
    line.skip()
    if line.over:
        return Requirement(place, program)
    begin = line.at
    sign = line.take(_OPERATOR)
    if sign not in COMPARED:
        problem = f"versions are not compared by {sign}" if sign else "a comparison is missing"
        line.refuse(problem, begin, hint=f"such as {program} >= 0.3")
    if program not in PROGRAMS:
        hint = f"Require {program} looks whether there is one"
        hint = did_you_mean(program, PROGRAMS, hint)
        line.refuse(f"the version of {program!r} is not looked at", at, hint=hint)
    line.skip()
    begin, version = line.at, line.word()
    if not _VERSION.fullmatch(version):
        line.refuse(f"{version!r} is no version" if version else "a version is missing", begin,
                    hint="such as 0.3")  # fmt: skip
    return Requirement(place, program, sign, version)


def _source(line: TapeLine, place: TapePlace) -> Source:
    begin = line.at
    path = line.text_or_word("a tape")
    return Source(TapePlace(place.file, place.line, begin + 1), path)


_OTHERS: Mapping[str, tuple[Callable[[TapeLine, TapePlace], Statement], Forms]] = {
    "Source": (_source, (
        ("Source FILE", "Play another tape's steps; FILE is beside this tape. At most 8 deep."),
    )),
    "Require": (_require, (
        ("Require probedeck [OPERATOR VERSION]", "End at once with exit code 3 if the version "
         "differs: == != < <= > >=. Require console means the same. Require PROGRAM needs that "
         "program on PATH."),
    )),
    "Set": (_set, (
        ("Set WaitTimeout TIME", "Seconds that later steps wait if they state no time: 15s."),
        ("Set TypingSpeed TIME", "Pause after each key of later steps: 0."),
        ("Set Width N, Set Height N", "Size of a screen that is not shown: 120 x 40; before the "
         "first step."),
    )),
}  # fmt: skip
STATEMENTS = (*STEPS, *BLOCKS, *_OTHERS)
"""First words of lines; commands and keys are others."""
FORMS = (
    *(form for step in STEPS.values() for form in step.forms),
    *(form for forms in BLOCKS.values() for form in forms),
    *(form for _, forms in _OTHERS.values() for form in forms),
    ("$NAME, ${NAME}", "The value of --set NAME=VALUE, anywhere in a line; $$ is a dollar sign."),
    ("# TEXT", "A comment, also after a step. A comment in the first line is the tape's title."),
)
"""Forms of lines and their help, in the order of help."""
EXIT = (
    "A tape with mistakes does not begin: exit code 2, every mistake as FILE:LINE:COLUMN. A step"
    " that fails, or changes what runs without --allow-write, ends it: FILE:LINE, the reason,"
    " exit code 3."
)
