"""The lines of a tape: one step, setting, requirement or source each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from app.commands import REGISTRY, Invocation, parse
from app.commands.export_target import PICTURE, PICTURES, SUFFIXES, suffix_of, target
from app.commands.keys import key_name
from app.commands.model import Saved
from app.commands.registry import OVERWRITE
from app.console.screens import SCREENS
from app.tape.condition import read_condition
from app.tape.keys import MODIFIERS, VERBS, held
from app.tape.line import TapeLine, TapeLineError, duration
from app.tape.model import (
    Action,
    Expect,
    Export,
    Fault,
    Press,
    Requirement,
    ScreenPattern,
    Screenshot,
    Sleep,
    TapeInstruction,
    TapePlace,
    TapeStep,
    Type,
    Wait,
)
from bpf.errors import TextError, UsageError, did_you_mean


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


Statement: TypeAlias = "TapeStep | TapeSetting | Requirement | Source"

_HEAD = re.compile(r"([A-Za-z]\w*)((?:\+(?:[^\s+@]+|[+@])?)*)(?:@(\S*))?")
"""A verb, what is joined to it, and a time."""
_PROGRAMS = ("probedeck", "console")
"""What `Require` calls this program."""
_PROGRAM = re.compile(r"[^\s=!<>]+")
_COMPARED = re.compile(r"[=!<>]+")
COMPARISONS = ("==", "!=", ">=", "<=", ">", "<")
"""Of versions."""
_VERSION = re.compile(r"\d{1,9}(\.\d{1,9})*", re.ASCII)
_NO_TABLE = "overview"
"""A view that there is only a picture of."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")
_SIZES = {"Width": (20, 1000), "Height": (5, 500)}
"""The smallest and the largest, in characters."""
SETTINGS = ("WaitTimeout", "TypingSpeed", *_SIZES)


def read(text: str, file: str, saved: Saved) -> tuple[list[Statement], list[Fault]]:
    """The lines of a tape, and what is wrong with others; `saved` are filters by name."""
    statements: list[Statement] = []
    faults: list[Fault] = []
    for number, content in enumerate(text.split("\n"), 1):
        line = TapeLine(content.removesuffix("\r"))
        try:
            if found := _UNPRINTABLE.search(line.text):
                line.refuse(f"there is a control character, {found[0]!a}", found.start())
            if not line.over:
                place = TapePlace(file, number, line.at + 1)
                statements.append(_statement(line, place, saved))
        except TapeLineError as refusal:
            place = TapePlace(file, number, refusal.column)
            faults.append(Fault(place, refusal.message, refusal.hint))
    return statements, faults


def _statement(line: TapeLine, place: TapePlace, saved: Saved) -> Statement:
    begin = line.at
    word = line.word()
    head = _HEAD.fullmatch(word)
    if (head is None and "." in word) or word in REGISTRY:
        line.at = begin
        return _step(line, begin, place, Action(_command(line, saved)))
    verb, joined, time = head.groups() if head else (word, "", None)
    if verb in MODIFIERS:
        return _step(line, begin, place, _held(line, begin, verb, joined, time))
    if verb not in STATEMENTS and verb not in VERBS:
        names = (*STATEMENTS, *VERBS, *MODIFIERS, *REGISTRY)
        hint = did_you_mean(verb, names)
        hint = hint if hint.startswith("did you") else f"verbs are {', '.join(STATEMENTS)} and keys"
        line.refuse(f"there is no verb or command {word!r}", begin, hint=hint)
    if joined and verb != "Wait":
        # Wait says which it takes.
        line.refuse(f"{verb} takes no {joined!r}", begin + len(verb))
    if time is not None and verb not in (*_TIMED, *VERBS, "Wait"):
        line.refuse(f"{verb} takes no time", begin + len(verb) + len(joined))
    seconds = None
    if time is not None:
        at = begin + len(word) - len(time)
        seconds = duration(line, at, time, zero=verb != "Wait")
    line.skip()
    if verb == "Wait":
        return _step(line, begin, place, _wait(line, begin + len(verb), joined, seconds))
    if verb == "Action":
        return _step(line, begin, place, _action(line, saved))
    if verb in VERBS:
        return _step(line, begin, place, _press(line, VERBS[verb], seconds))
    if verb in _TIMED:
        return _step(line, begin, place, _TIMED[verb](line, seconds))
    if verb in _STEPS:
        return _step(line, begin, place, _STEPS[verb](line))
    other = _OTHERS[verb](line, place)
    line.end(verb)
    return other


def _step(line: TapeLine, begin: int, place: TapePlace, instruction: TapeInstruction) -> TapeStep:
    text = line.text[begin : line.at].strip()
    line.end(text.split()[0])
    return TapeStep(place, text, instruction)


# Keys


def _held(line: TapeLine, begin: int, verb: str, joined: str, time: str | None) -> Press:
    words = re.findall(r"\+([^+]+|\+)", joined)
    if not words:
        line.refuse(f"{verb} needs a key", begin, hint=f"such as {verb}+P")
    *more, key = words
    at = begin + len(verb) + len(joined) - len(key)
    for word in more:
        if word not in MODIFIERS:
            line.refuse(f"{word!r} is not held with another key", begin + len(verb) + 1,
                        hint=f"there are {', '.join(MODIFIERS)}")  # fmt: skip
    try:
        name = held([verb, *more], key)
    except UsageError as error:
        line.refuse(error.message, at, hint=error.hint)
    seconds = None
    if time is not None:
        seconds = duration(line, at + len(key) + 1, time, zero=True)
    line.skip()
    return _press(line, name, seconds)


def _press(line: TapeLine, key: str, seconds: float | None) -> Press:
    return Press(key, line.count(), seconds)


def _key(line: TapeLine, seconds: float | None) -> Press:
    begin = line.at
    text = line.text_or_word("a key")
    try:
        name = key_name(text)
    except UsageError as error:
        line.refuse(error.message, begin, hint=error.hint)
    line.skip()
    return _press(line, name, seconds)


def _type(line: TapeLine, seconds: float | None) -> Type:
    words = [line.text_or_word("text to type")]
    line.skip()
    while not line.over:
        words.append(line.text_or_word(""))
        line.skip()
    text = " ".join(words)
    for character in text:
        if not (character.isprintable() or character == "\t"):
            line.refuse(f"{character!a} cannot be typed", line.text.index(character))
    return Type(text, seconds)


# Commands


def _action(line: TapeLine, saved: Saved) -> Action:
    if line.over:
        line.refuse("a command is missing", hint="such as Action flow.sort rate")
    return Action(_command(line, saved))


def _command(line: TapeLine, saved: Saved) -> Invocation:
    """The command from here to the end, or to a comment."""
    begin = line.at
    end = _end(line.text, begin)
    line.at = end
    text = line.text[begin:end]
    try:
        asked = parse(text, saved)
    except TextError as error:
        line.refuse(error.problem, begin + error.column - 1, hint=error.hint)
    if asked.command.name.startswith("macro."):
        name = asked.command.name
        line.refuse(f"{name} is nothing for a tape", begin, hint="Source plays another")
    return asked


def _end(text: str, begin: int) -> int:
    """Where a comment begins that is not in quotes, or else the text's end."""
    quoted = False
    for at in range(begin, len(text)):
        if text[at] == '"':
            quoted = not quoted
        elif text[at] == "#" and text[at - 1].isspace() and not quoted:
            return at
    return len(text)


def _export(line: TapeLine) -> Export:
    begin = line.at
    view = line.text_or_word("a view")
    if view not in SCREENS:
        line.refuse(f"there is no view {view!r}", begin, hint=did_you_mean(view, SCREENS))
    line.skip()
    at = line.at
    path = _file(line, SUFFIXES)
    if view == _NO_TABLE and suffix_of(Path(path)) != PICTURE:
        line.refuse(f"{view} has no table", at, hint=f"a picture of it ends in .{PICTURE}")
    # An exported file is the tape's result: the next run replaces it.
    command = Invocation(REGISTRY["view.export"], (path, OVERWRITE))
    return Export(Invocation(REGISTRY[f"view.{view}"]), command, path)


def _screenshot(line: TapeLine) -> Screenshot:
    return Screenshot(_file(line, PICTURES))


def _file(line: TapeLine, suffixes: Sequence[str]) -> str:
    begin = line.at
    path = line.text_or_word("a file")
    try:
        target(path, suffixes)
    except UsageError as error:
        line.refuse(error.message, begin, hint=error.hint)
    return path


# Time and state


def _wait(line: TapeLine, at: int, joined: str, seconds: float | None) -> Wait:
    if joined not in ("", "+Screen", "+Line"):
        line.refuse(f"Wait takes no {joined!r}", at, hint="there are Wait+Screen and Wait+Line")
    if joined or line.text[line.at : line.at + 1] == "/":
        return Wait(ScreenPattern(line.pattern(), joined != "+Line"), seconds)
    return Wait(None if line.over else read_condition(line), seconds)


def _expect(line: TapeLine) -> Expect:
    return Expect(read_condition(line))


def _sleep(line: TapeLine) -> Sleep:
    return Sleep(line.duration(zero=True))


# What is no step


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
        line.refuse("a program is missing", hint=f"such as Require {_PROGRAMS[0]} >= 0.3")
    line.skip()
    if line.over:
        return Requirement(place, program)
    begin = line.at
    sign = line.take(_COMPARED)
    if sign not in COMPARISONS:
        problem = f"versions are not compared by {sign}" if sign else "a comparison is missing"
        line.refuse(problem, begin, hint=f"such as {program} >= 0.3")
    if program not in _PROGRAMS:
        hint = did_you_mean(program, _PROGRAMS)
        if not hint.startswith("did you"):
            hint = f"Require {program} looks whether there is one"
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


_TIMED: Mapping[str, Callable[[TapeLine, float | None], TapeInstruction]] = {
    "Type": _type,
    "Key": _key,
}
"""Those that take a time, as keys do; beside Wait."""
_STEPS: Mapping[str, Callable[[TapeLine], TapeInstruction]] = {
    "Expect": _expect, "Sleep": _sleep, "Export": _export, "Screenshot": _screenshot,
}  # fmt: skip
_OTHERS: Mapping[str, Callable[[TapeLine, TapePlace], TapeSetting | Requirement | Source]] = {
    "Set": _set, "Require": _require, "Source": _source,
}  # fmt: skip
STATEMENTS = ("Action", "Wait", *_TIMED, *_STEPS, *_OTHERS)
"""What a line begins with that is no command and no key."""
