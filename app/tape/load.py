"""Tapes from files, with their sources, checked before the first step."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.commands.model import Saved
from app.files import as_invoker
from app.tape.condition import COMPARED
from app.tape.grammar import (
    ELSE,
    IF,
    NONE,
    ON,
    PROGRAMS,
    REPEAT,
    BlockLine,
    React,
    Skip,
    Source,
    Statement,
    TapeSetting,
    read,
)
from app.tape.model import TIMEOUT, Fault, Requirement, Tape, TapeError, TapePlace, TapeStep
from app.tape.steps import Press, Type
from bpf.errors import UsageError
from probes.config.trusted_file import open_trusted

NESTING = 8
"""`Source` within `Source`."""
MOST_LINES = 10_000
"""Limit of the lines of a tape with its sources: nested sources may double them each time."""
STDIN = Path("/dev/stdin")
_MOST_BYTES = 1 << 20


@dataclass(slots=True)
class _Speeds:
    """Values of `Set` for later lines."""

    timeout: float = TIMEOUT
    typing: float = 0.0

    def said(self, step: TapeStep) -> TapeStep:
        """Return the step with these values where it states none."""
        instruction = step.instruction
        if isinstance(instruction, Type | Press) and instruction.pause is None:
            instruction = replace(instruction, pause=self.typing)
        return replace(step, instruction=instruction, patience=self.timeout)


class _Loader:
    """Reads one tape and its sources."""

    def __init__(self, saved: Saved, variables: Saved) -> None:
        self.steps: list[TapeStep] = []
        self.requirements: list[Requirement] = []
        self.sizes: dict[str, int] = {}
        self.faults: list[Fault] = []
        self._saved, self._variables = saved, variables
        self._known: dict[Path, list[Statement]] = {}
        """Lines of each file: its faults are reported once."""
        self._read_lines = 0
        self._sourced: dict[str, tuple[int, ...]] = {}
        """Lines of the Source steps that led to a file first."""

    def tape(self, name: str, text: str, file: str, directory: Path, *inside: Path) -> Tape:
        """Read a tape. `file` names it in errors, `directory` has its sources. `inside` are the
        tapes that play this one: a source must be none of them. Raises TapeError."""
        self._run(self._said(text, file), inside, directory, _Speeds(), outermost=True)
        if self.faults:
            raise TapeError(sorted(dict.fromkeys(self.faults), key=self._line_order))
        first = text.split("\n", 1)[0].strip()
        title = first.removeprefix("#").strip() if first.startswith("#") else ""
        sizes = {each.lower(): number for each, number in self.sizes.items()}
        return Tape(name, tuple(self.steps), tuple(self.requirements), title=title, **sizes)

    def _said(self, text: str, file: str) -> list[Statement]:
        statements, faults = read(text, file, self._saved, self._variables)
        self.faults += faults
        return statements

    def _run(
        self, statements: Iterable[Statement], inside: tuple[Path, ...], directory: Path,
        speeds: _Speeds, *, outermost: bool = False,
    ) -> None:  # fmt: skip
        opened: list[tuple[BlockLine, int]] = []
        """Lines of open blocks, and the indices of their first steps."""
        for one in statements:
            self._read_lines += 1
            if isinstance(one, TapeSetting):
                self._set(one, speeds, outermost=outermost)
            elif isinstance(one, Requirement):
                self.requirements.append(one)
            elif isinstance(one, Source):
                self._source(one, inside, directory, speeds)
            elif isinstance(one, TapeStep):
                self.steps.append(speeds.said(one))
            elif one.verb == ON:
                self._on(one, inside, directory, speeds)
            else:
                self._block(one, opened)
        for block, _ in opened:
            self._fault(block.place, f"{block.verb} has no End")

    def _block(self, one: BlockLine, opened: list[tuple[BlockLine, int]]) -> None:
        """Repeat the steps of a block, or let its first line leave them out."""
        if one.verb in (REPEAT, IF):
            opened.append((one, len(self.steps)))
            if one.verb == IF:
                self._jump(one)
            return
        if one.verb == ELSE and not (opened and opened[-1][0].verb == IF):
            self._fault(one.place, "there is no If before this Else")
            return
        block, begin = opened.pop()
        if one.verb == ELSE:
            opened.append((one, len(self.steps)))
            self._jump(one)
        if block.verb != REPEAT:
            jump = Skip(len(self.steps) - begin - 1, block.condition)
            self.steps[begin] = replace(self.steps[begin], instruction=jump)
            return
        body = self.steps[begin:]
        if len(self.steps) + len(body) * (block.count - 1) > MOST_LINES:
            self._fault(block.place, f"this repeats to more than {MOST_LINES} steps")
        else:
            self.steps += body * (block.count - 1)

    def _jump(self, one: BlockLine) -> None:
        self.steps.append(TapeStep(one.place, one.text, Skip(0, one.condition)))

    def _on(
        self, one: BlockLine, inside: tuple[Path, ...], directory: Path, speeds: _Speeds
    ) -> None:
        assert one.event is not None
        assert one.path_place is not None
        before, self.steps = self.steps, []
        self._source(Source(one.path_place, one.path), inside, directory, speeds)
        steps, self.steps = tuple(self.steps), before
        self.steps.append(TapeStep(one.place, one.text, React(one.event, steps)))

    def _set(self, one: TapeSetting, speeds: _Speeds, *, outermost: bool) -> None:
        if one.name == "WaitTimeout":
            speeds.timeout = one.value
        elif one.name == "TypingSpeed":
            speeds.typing = one.value
        elif self.steps and outermost:
            self._fault(one.place, f"Set {one.name} comes after the first step")
        elif outermost:
            # Only the outermost tape sets the size of the screen.
            self.sizes[one.name] = int(one.value)

    def _source(
        self, one: Source, inside: tuple[Path, ...], directory: Path, speeds: _Speeds
    ) -> None:
        path = directory / one.path
        where = path.resolve()
        if where in inside:
            self._fault(one.place, f"{one.path!r} is this tape, or one that plays it")
        elif len(inside) > NESTING:
            self._fault(one.place, f"tapes are nested more than {NESTING} deep")
        elif self._read_lines > MOST_LINES:
            self._fault(one.place, f"the tape has more than {MOST_LINES} lines by now")
        else:
            try:
                if where not in self._known:
                    outer = self._sourced.get(one.place.file, ())
                    self._sourced.setdefault(str(path), (*outer, one.place.line))
                    self._known[where] = self._said(text_of(path), str(path))
            except TapeError as error:
                self.faults += error.faults
            except UsageError as error:
                self._fault(one.place, error.message)
            else:
                self._run(self._known[where], (*inside, where), path.parent, replace(speeds))

    def _line_order(self, fault: Fault) -> tuple[int, ...]:
        """Sort by lines; the mistakes of a source stand at the line of its Source."""
        place = fault.place
        return *self._sourced.get(place.file, ()), place.line, place.column

    def _fault(self, place: TapePlace, message: str) -> None:
        self.faults.append(Fault(place, message))


def load(path: Path, saved: Saved = NONE, variables: Saved = NONE) -> Tape:
    """Return the tape in a file; `saved` are filters by name, `variables` values by name. Raises
    TapeError and UsageError."""
    inside = path.resolve()
    return _Loader(saved, variables).tape(path.stem, text_of(path), str(path), path.parent, inside)


def of_text(text: str, file: str, saved: Saved = NONE, variables: Saved = NONE) -> Tape:
    """Return a tape from a text; `file` names it in errors. Raises TapeError."""
    return _Loader(saved, variables).tape(file, text, file, Path())


def of_commands(lines: Sequence[str], saved: Saved = NONE) -> Tape:
    """Return a tape of commands from `--exec`. Raises TapeError."""
    # A line break would begin another line.
    text = "\n".join("Action " + line.replace("\n", " ").replace("$", "$$") for line in lines)
    try:
        return of_text(text, "--exec", saved)
    except TapeError as error:
        moved = [
            replace(f, place=replace(f.place, column=max(1, f.place.column - len("Action "))))
            for f in error.faults
        ]
        raise TapeError(moved) from None


def text_of(path: Path) -> str:
    """Return the text of a tape's file. Raises UsageError, and TapeError if it is no text."""
    try:
        # The user has opened these descriptors, which may be pipes: `<(...)` of a shell.
        opener = None if path == STDIN or path.is_relative_to("/dev/fd") else open_trusted
        with as_invoker(), open(path, "rb", opener=opener) as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"tape {str(path)!r}: {words}") from None
    if len(content) > _MOST_BYTES:
        raise UsageError(f"tape {str(path)!r} is larger than 1 MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        *before, last = content[: error.start].split(b"\n")
        place = TapePlace(str(path), len(before) + 1, len(last.decode("utf-8-sig")) + 1)
        raise TapeError([Fault(place, "this is no UTF-8 text")]) from None


def joined(tapes: Sequence[Tape]) -> Tape:
    """Join tapes; the first sets the size of the screen."""
    return replace(
        tapes[0],
        steps=tuple(step for tape in tapes for step in tape.steps),
        requirements=tuple(one for tape in tapes for one in tape.requirements),
    )


def refused(what: str) -> str:
    return f"{what} changes what runs; --allow-write lets a tape do that"


def unmet(tape: Tape, version: str) -> Iterator[tuple[TapePlace, str]]:
    for one in tape.requirements:
        if one.operator:
            if not COMPARED[one.operator](_numbers(version), _numbers(one.version)):
                wanted = f"{one.program} {one.operator} {one.version}"
                yield one.place, f"this needs {wanted}, and is {version}"
        elif one.program not in PROGRAMS and shutil.which(one.program) is None:
            yield one.place, f"this needs {one.program!r}, which is not on PATH"


def _numbers(version: str) -> list[int]:
    # Without the last zeros: 0.6 equals 0.6.0.
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        del numbers[-1]
    return numbers
