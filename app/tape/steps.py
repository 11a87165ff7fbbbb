"""Steps of tapes. A step is one class: its syntax, its help, and how it is played."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Self

from app.commands.export_target import (
    DRAWN,
    OVERWRITE,
    PICTURES,
    SUFFIXES,
    TEXT,
    VALUES,
    suffix_of,
    target,
)
from app.commands.keys import NAMES, key_name
from app.commands.line import Invocation, parse
from app.commands.registry import REGISTRY, find
from app.console.screens import SCREENS
from app.files import as_invoker, make_directory
from app.tape.condition import StateCondition, read_condition, shown
from app.tape.line import MODIFIERS, TapeLine, character_of, duration, held
from app.tape.model import LineHead, TapeInstruction, TapeStage
from bpf.errors import ProbedeckError, TextError, did_you_mean, placed
from probes.config.trusted_file import open_regular

PATIENCE = 1.0
"""Seconds for an `Expect` to hold: the screen may be a frame late."""
_NO_TABLE = "overview"
"""The view that only a picture can be exported of."""
_QUOTED = re.compile(r'(\S+\s+)"([^"\\]*)"\s*')
_SUFFIXES = " ".join(f".{suffix}" for suffix in (*VALUES, TEXT))


@dataclass(frozen=True, slots=True)
class Action(TapeInstruction):
    """`Action flow.sort rate`, or only `flow.sort rate`."""

    asked: Invocation
    forms = (
        ("Action COMMAND [VALUE]", "Run a command, such as Action flow.sort bytes; the word Action "
         "may be left out."),
    )  # fmt: skip

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        """Read a command to the end of the line, or to a comment."""
        if line.over:
            line.refuse("a command is missing", hint="such as Action flow.sort rate")
        begin = line.at
        line.at = end = _end(line.text, begin)
        text, shift = line.text[begin:end], 0
        named = find(text.split(maxsplit=1)[0])
        whole = named is not None and any(each.rest for each in named.parameters[:1])
        if found := _QUOTED.fullmatch(text) if whole else None:
            # As in Type, quotes around the whole value are no part of it.
            text, shift = found[1] + found[2], 1
        try:
            asked = parse(text, head.saved)
        except TextError as error:
            at = error.column - 1 + (shift if error.column > len(found[1] if found else "") else 0)
            line.refuse(error.problem, begin + at, hint=error.hint)
        name = asked.command.name
        if name.startswith("macro."):
            line.refuse(f"{name} is nothing for a tape", begin, hint="Source plays another")
        return cls(asked)

    async def play(self, stage: TapeStage) -> None:
        await stage.run_command(self.asked)

    @property
    def writes(self) -> bool:
        return self.asked.writes


def _end(text: str, begin: int) -> int:
    """Return the start of a comment, or else the text's end."""
    quoted = False
    for at in range(begin, len(text)):
        if text[at] == '"':
            quoted = not quoted
        elif text[at] == "#" and text[at - 1].isspace() and not quoted:
            return at
    return len(text)


@dataclass(frozen=True, slots=True)
class Type(TapeInstruction):
    """`Type@50ms "text"`."""

    text: str
    pause: float | None = None
    """Seconds after each character; None: the value of `Set TypingSpeed`."""
    forms = (
        ("Type[@TIME] TEXT", "Type a text, with a pause of TIME after each character. Text in "
         "\"...\", '...' or `...` is taken literally, without escapes. Words without quotes are "
         "joined by one space."),
    )  # fmt: skip
    timed = True

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        words: list[str] = []
        while not (words and line.over):
            words.append(line.text_or_word("text to type"))
            line.skip()
        text = " ".join(words)
        for character in text:
            if not (character.isprintable() or character == "\t"):
                line.refuse(f"{character!a} cannot be typed", line.text.index(character))
        return cls(text, head.seconds)

    async def play(self, stage: TapeStage) -> None:
        for character in self.text:
            await stage.press(NAMES.get(character, character), character, self.pause or 0)


@dataclass(frozen=True, slots=True)
class Press(TapeInstruction):
    """`Enter 2`, `Ctrl+P`, `Key "f13"`."""

    key: str
    """The console's name: `ctrl+p`, `question_mark`."""
    count: int = 1
    pause: float | None = None
    """Seconds after each press; None: the value of `Set TypingSpeed`."""
    forms = (
        ("Enter[@TIME] [N]", "Press a key, N times. Other keys: Tab Up Down Left Right Escape "
         "Space Backspace Delete Insert Home End PageUp PageDown F1 to F12."),
        ("Ctrl+P[@TIME] [N]", "Press a key with Ctrl, Alt or Shift held; also Ctrl+Shift+Left."),
        ('Key[@TIME] "NAME" [N]', "Press any key by its name in key maps: Key \"?\", Key f13."),
    )  # fmt: skip
    timed = True

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        begin = line.at
        text = line.text_or_word("a key")
        with placed(line.text, begin):
            name = key_name(text)
        line.skip()
        return cls(name, line.count(), head.seconds)

    @classmethod
    def read_held(
        cls, line: TapeLine, begin: int, verb: str, joined: str, time: str | None
    ) -> Self:
        """Read `Ctrl+Shift+P@50ms 2`; `begin` is where the modifier begins."""
        words = re.findall(r"\+([^+]+|\+)", joined)
        if not words:
            line.refuse(f"{verb} needs a key", begin, hint=f"such as {verb}+P")
        *more, key = words
        at = begin + len(verb) + len(joined) - len(key)
        for word in more:
            if word not in MODIFIERS:
                line.refuse(f"{word!r} is not held with another key", begin + len(verb) + 1,
                            hint=f"there are {', '.join(MODIFIERS)}")  # fmt: skip
        with placed(line.text, at):
            name = held([verb, *more], key)
        seconds = None if time is None else duration(line, at + len(key) + 1, time, zero=True)
        line.skip()
        return cls(name, line.count(), seconds)

    async def play(self, stage: TapeStage) -> None:
        for _ in range(self.count):
            await stage.press(self.key, character_of(self.key), self.pause or 0)


@dataclass(frozen=True, slots=True)
class ScreenPattern:
    """A text to wait for on the screen."""

    pattern: re.Pattern[str]
    whole: bool
    """Search the whole screen; else only the line with the cursor."""

    @classmethod
    def read(cls, line: TapeLine, head: LineHead, verb: str) -> Self | None:
        """Read `+Line /RE/` after a verb; None if no pattern follows."""
        joined = head.joined
        if joined not in ("", "+Screen", "+Line"):
            hint = f"there are {verb}+Screen and {verb}+Line"
            line.refuse(f"{verb} takes no {joined!r}", head.joined_at, hint=hint)
        if joined or line.text[line.at : line.at + 1] == "/":
            return cls(line.pattern(), joined != "+Line")
        return None


async def _hold(
    stage: TapeStage, until: ScreenPattern | StateCondition, seconds: float, after: str = ""
) -> None:
    """Wait until a pattern or a state holds; `after` ends the reason why it fails."""
    if isinstance(until, StateCondition):
        if not await stage.until(seconds, lambda: until.holds(stage.state(until.state))):
            stage.fail(f"it is {shown(stage.state(until.state))}{after}")
    elif not await stage.until(seconds, lambda: stage.sees(until.pattern, whole=until.whole)):
        where = "on the screen" if until.whole else "in the line of the cursor"
        stage.fail(f"not {where} within {seconds:g} s")


@dataclass(frozen=True, slots=True)
class Wait(TapeInstruction):
    """`Wait`, `Wait+Screen@5s /text/`, `Wait@5s program.state == "ready"`."""

    until: ScreenPattern | StateCondition | None = None
    """None: until all requested work is done."""
    timeout: float | None = None
    """Seconds; None: the value of `Set WaitTimeout`."""
    forms = (
        ("Wait[@TIME]", "Wait until all requested work is done, as each step does."),
        ("Wait[+Screen|+Line][@TIME] /RE/", "Wait until the screen, or the line with the cursor, "
         "matches a regular expression of Python, with \\/ for a slash."),
        ("Wait[@TIME] STATE OPERATOR VALUE", "Wait until a state has a value; see probedeck tape "
         "states."),
    )  # fmt: skip
    timed = joins = True
    settles = False

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        if (until := ScreenPattern.read(line, head, "Wait")) is not None:
            return cls(until, head.seconds)
        return cls(None if line.over else read_condition(line), head.seconds)

    async def play(self, stage: TapeStage) -> None:
        until = self.until
        seconds = stage.patience if self.timeout is None else self.timeout
        if until is None:
            await stage.idle(seconds)
        else:
            await _hold(stage, until, seconds, f" after {seconds:g} s")


@dataclass(frozen=True, slots=True)
class Expect(TapeInstruction):
    """`Expect program.state == "ready"`."""

    condition: ScreenPattern | StateCondition
    forms = (
        ("Expect[+Screen|+Line] /RE/", "End with exit code 3 if the screen, or the line with the "
         "cursor, does not match within a second."),
        ("Expect STATE OPERATOR VALUE", "End with exit code 3 if the state does not have the value "
         "within a second: == != for all, < <= > >= for numbers, =~ /RE/ and !~ /RE/ for text. "
         'Values are "text", true, 3, 10k, 10Mbit/s, 50ms, 5%.'),
    )  # fmt: skip
    joins = True
    settles = False

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        return cls(ScreenPattern.read(line, head, "Expect") or read_condition(line))

    async def play(self, stage: TapeStage) -> None:
        await _hold(stage, self.condition, PATIENCE)


@dataclass(frozen=True, slots=True)
class Sleep(TapeInstruction):
    """`Sleep 500ms`."""

    seconds: float
    forms = (("Sleep TIME", "Wait for a time: 500ms, 2s, 1m, or a number of seconds."),)
    settles = False

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        return cls(line.duration(zero=True))

    async def play(self, stage: TapeStage) -> None:
        await stage.sleep(self.seconds)


@dataclass(frozen=True, slots=True)
class Export(TapeInstruction):
    """`Export flows "flows.csv"`."""

    view: Invocation
    command: Invocation
    path: str
    forms = (
        ("Export VIEW FILE", f"Turn to a view and write its table: {_SUFFIXES}; or a picture of "
         "it: .svg. Directories are made, and an existing file is replaced."),
    )  # fmt: skip

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        begin = line.at
        view = line.text_or_word("a view")
        if view not in SCREENS:
            line.refuse(f"there is no view {view!r}", begin, hint=did_you_mean(view, SCREENS))
        line.skip()
        at = line.at
        path = _file(line, SUFFIXES)
        if view == _NO_TABLE and suffix_of(Path(path)) not in DRAWN:
            line.refuse(f"{view} has no table", at, hint=f"a picture of it ends in .{DRAWN[0]}")
        # An exported file is the tape's result: the next run replaces it.
        command = Invocation(REGISTRY["view.export"], (path, OVERWRITE))
        return cls(Invocation(REGISTRY[f"view.{view}"]), command, path)

    async def play(self, stage: TapeStage) -> None:
        _make_directory(target(self.path))
        await stage.run_command(self.view)
        await stage.idle(stage.patience)
        await stage.run_command(self.command)


@dataclass(frozen=True, slots=True)
class Screenshot(TapeInstruction):
    """`Screenshot "x.svg"`."""

    path: str
    forms = (("Screenshot FILE", "Write the screen to a file: .svg, .png or .txt."),)

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        return cls(_file(line, PICTURES))

    async def play(self, stage: TapeStage) -> None:
        path = target(self.path)
        _make_directory(path)
        stage.picture(path)


@dataclass(frozen=True, slots=True)
class Compare(TapeInstruction):
    """`Compare "flows.txt" /\\d\\d:\\d\\d:\\d\\d/`."""

    path: str
    left_out: re.Pattern[str] | None
    forms = (
        ("Compare FILE [/RE/]", "End with exit code 3 if the screen does not become the text in a "
         ".txt file within a second. Parts that match RE are left out on both sides: clocks and "
         "rates. --update-golden writes the file."),
    )  # fmt: skip
    settles = False

    @classmethod
    def read(cls, line: TapeLine, head: LineHead) -> Self:
        path = _file(line, (TEXT,))
        line.skip()
        return cls(path, None if line.over else line.pattern())

    async def play(self, stage: TapeStage) -> None:
        path = target(self.path)
        if stage.updates_golden:
            _make_directory(path)
            stage.picture(path)
            return
        try:
            with as_invoker(), open(path, encoding="utf-8", opener=open_regular) as file:
                wanted = self._compared(file.read())
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else "it is no text"
            stage.fail(f"{path}: {words}; --update-golden writes it")
        if not await stage.until(PATIENCE, lambda: self._compared(stage.text) == wanted):
            lines = zip_longest(wanted, self._compared(stage.text), fillvalue="")
            at, (want, got) = next(
                (number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1]
            )
            stage.fail(f"line {at} of the screen differs from {path}: {got!r}, not {want!r}")

    def _compared(self, text: str) -> list[str]:
        return (self.left_out.sub("", text) if self.left_out else text).splitlines()


def _file(line: TapeLine, suffixes: Sequence[str]) -> str:
    begin = line.at
    path = line.text_or_word("a file")
    with placed(line.text, begin):
        target(path, suffixes)
    return path


def _make_directory(path: Path) -> None:
    try:
        make_directory(path.parent)
    except OSError as error:
        raise ProbedeckError(f"{path} cannot be written: {error.strerror}") from None


STEPS: Mapping[str, type[TapeInstruction]] = {
    "Action": Action, "Type": Type, "Key": Press, "Wait": Wait, "Expect": Expect, "Sleep": Sleep,
    "Export": Export, "Screenshot": Screenshot, "Compare": Compare,
}  # fmt: skip
