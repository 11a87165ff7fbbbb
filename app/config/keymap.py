"""What each key does: the registry's keys, and those that an operator chose in `config.toml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from app.commands.keys import key_name, strokes
from app.commands.line import parse, quoted
from app.commands.model import Command
from app.commands.registry import REGISTRY
from app.config.model import Binding, Settings
from app.console.screens import SCREENS
from bpf.errors import UsageError, did_you_mean

Complain = Callable[[tuple[str, ...], UsageError], None]
"""Is told of a mistake: where it is in the file, sections and key, and what it is."""
_SELECT = "table.select"
_TAPE = ".tape"
"""What the name of a tape's file ends in."""


@dataclass(frozen=True, slots=True)
class BoundKey:
    """A key and what it does."""

    key: str
    """Textual's name of it."""
    lines: tuple[str, ...] = ()
    """Commands and their values, one after the other; none: it does nothing."""
    keys: tuple[str, ...] = ()
    """Keys that it stands for, instead of lines."""
    command: Command | None = None
    """What it is called by, where that is a command without values."""
    written: str = ""
    """As the settings have the key; empty for the registry's."""

    @property
    def title(self) -> str:
        """What it does, in a few words."""
        if self.command is not None:
            return self.command.title
        return "; ".join(self.lines) or " ".join(self.keys)


class Keymap:
    """Keys of each screen and of all, checked when it is made."""

    def __init__(self, settings: Settings | None = None, complain: Complain | None = None) -> None:
        """Without `complain` the first mistake is raised, a UsageError that names file and key;
        else what is wrong is left out."""
        self._settings = settings or Settings()
        self._complain = complain or self._raise
        self._tables: dict[str, dict[str, BoundKey]] = {screen: {} for screen in ("", *SCREENS)}
        for command in REGISTRY.values():
            for key in filter(None, command.keys.split(",")):
                self._tables[command.screen][key] = BoundKey(key, (command.name,), command=command)
        for section in self._settings.keys:
            self._choose(section)
        for bound in self._tables[""].values():
            if bound.written:
                self._refuse_hidden(bound)
        for command in REGISTRY.values():
            if command.by_row:
                own = self._tables[command.screen]
                for bound in self._tables[""].values():
                    if bound.lines == (_SELECT,):
                        own.setdefault(bound.key, replace(bound, command=command))

    def of(self, screen: str) -> tuple[BoundKey, ...]:
        """The keys that a screen has of its own, or that are everywhere (`""`): in the order of
        their commands, then those that do something else."""
        order = {name: place for place, name in enumerate(REGISTRY)}
        return tuple(
            sorted(
                self._tables[screen].values(),
                key=lambda bound: order[bound.command.name] if bound.command else len(order),
            )
        )

    def keys(self, name: str, screen: str) -> str:
        """The keys by comma that do a command on a screen, the operator's own first."""
        bound = (self._tables[""] | self._tables[screen]).values()
        return ",".join(each.key for each in bound if each.command and each.command.name == name)

    def _choose(self, section: str) -> None:
        """Put what a section of the settings says before what the registry does."""
        at = ("keys", section) if section else ("keys",)
        if section and section not in SCREENS:
            hint = did_you_mean(section, SCREENS)
            self._complain(at, UsageError(f"there is no screen {section!r}", hint=hint))
            return
        chosen: dict[str, BoundKey] = {}
        for text, binding in self._settings.keys[section].items():
            try:
                key = key_name(text)
                if key in chosen:
                    other = chosen[key].written
                    raise UsageError(f"it is the key {other} again", hint="keep one of them")
                chosen[key] = _bound(key, text, binding, self._settings)
            except UsageError as error:
                self._complain((*at, text), error)
        usual = self._tables[section]
        # What an operator chose is what is shown first.
        self._tables[section] = {**chosen, **{k: usual[k] for k in usual if k not in chosen}}

    def _refuse_hidden(self, bound: BoundKey) -> None:
        """A screen's own key would hide it, and nobody has said what it is to do there."""
        for screen in SCREENS:
            own = self._tables[screen].get(bound.key)
            if own is not None and not own.written:
                what = f"it is {own.title!r} on {screen}"
                hint = f"say in [keys.{screen}] what it does there"
                self._complain(("keys", bound.written), UsageError(what, hint=hint))
                return

    def _raise(self, at: tuple[str, ...], error: UsageError) -> None:
        place = f"[{'.'.join(at[:-1])}] {at[-1]}"
        place = f"{self._settings.origin}: {place}" if self._settings.origin else place
        raise UsageError(f"{place}: {error.message}", hint=error.hint)


def _bound(key: str, written: str, binding: Binding, settings: Settings) -> BoundKey:
    """Raises UsageError."""
    tapes = settings.macros
    lines = (binding,) if isinstance(binding, str) else binding
    if lines == ("",):
        return BoundKey(key, written=written)
    if len(lines) == 1 and lines[0].startswith("@") and not _is_tape(lines[0][1:], tapes):
        return BoundKey(key, keys=strokes(lines[0][1:]), written=written)
    asked = [parse(_command(line, settings)) for line in lines]
    only = asked[0].command if len(asked) == 1 and not asked[0].values else None
    return BoundKey(key, tuple(each.line for each in asked), command=only, written=written)


def _command(line: str, settings: Settings) -> str:
    """What a line stands for; `@NAME` plays a tape. Raises UsageError."""
    if not line.startswith("@"):
        return line
    name = line[1:]
    if not _is_tape(name, settings.macros):
        raise UsageError(f"{line!r} is no tape", hint="keys are given alone, in no list")
    if name.endswith(_TAPE) and name not in settings.macros:
        # Which knows this package.
        from app.config.sections import tape_beside

        name = tape_beside(Path(settings.origin), name)
    return f"macro.play {quoted(name)}"


def _is_tape(name: str, tapes: Mapping[str, str]) -> bool:
    """Whether it names a tape, not keys. Raises UsageError for a name that none has."""
    # Which knows this package.
    from app.tape.store import shipped

    if (
        name in tapes
        or name in shipped()
        or name.endswith(_TAPE)
        or (len(name) == 1 and name.isalpha())
    ):
        return True
    if not name:
        raise UsageError("@ is no tape", hint="such as @triage, or keys: @2/dport:443<enter>")
    # A mistyped name must not be pressed, letter by letter.
    if name.replace("-", "").replace("_", "").isalnum():
        hint = did_you_mean(name, (*tapes, *shipped()))
        raise UsageError(f"there is no tape {name!r}", hint=hint)
    return False
