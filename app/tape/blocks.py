"""Blocks of tapes: `Repeat`, `If`, `Else`, `End`, and `On`, whose steps follow an event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.tape.condition import EventPattern, StateCondition, read_condition
from app.tape.instruction import Forms, TapeInstruction, TapeStage
from app.tape.line import TapeLine
from app.tape.model import TapePlace, TapeStep

REPEAT, IF, ELSE, END, ON = "Repeat", "If", "Else", "End", "On"
FORMS: dict[str, Forms] = {
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
