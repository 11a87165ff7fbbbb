"""The key map: keys of the registry, and keys of `[keys]` in `config.toml`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from app.commands import own
from app.commands.keys import key_name, strokes
from app.commands.line import parse, quoted
from app.commands.model import Command
from app.commands.registry import REGISTRY
from app.config.model import Binding, Settings
from app.config.paths import beside, check_tape
from app.console.screens import SCREENS
from bpf.errors import UsageError, did_you_mean

Complain = Callable[[tuple[str, ...], UsageError], None]
"""Receives a mistake: its sections and key in the file, and the error."""
_TAPE = ".tape"
_RUN = "app.run "


@dataclass(frozen=True, slots=True)
class BoundKey:
    """A key with its commands, or the keys that it presses."""

    key: str
    """The name in Textual."""
    lines: tuple[str, ...] = ()
    """Command lines in their order."""
    keys: tuple[str, ...] = ()
    """Keys to press, instead of lines."""
    command: Command | None = None
    """The command, if the key runs one command without values."""
    written: str = ""
    """The key in the settings; empty for a key of the registry."""

    @property
    def runs_program(self) -> bool:
        """Whether it runs an own command."""
        return any(line.startswith(_RUN) for line in self.lines)

    @property
    def title(self) -> str:
        """Return the action in a few words."""
        if self.command is not None:
            return self.command.title
        shown = (own.MARK + line.removeprefix(_RUN) if line.startswith(_RUN) else line
                 for line in self.lines)  # fmt: skip
        return "; ".join(shown) or " ".join(self.keys)


class Keymap:
    """Keys of each screen, and keys of all screens (`""`)."""

    def __init__(self, settings: Settings | None = None, complain: Complain | None = None) -> None:
        """Check the keys. `complain` receives the mistakes, and such keys are left out.

        Without `complain`, raises UsageError with file and key of the first mistake.
        """
        self._settings = settings or Settings()
        self._complain = complain or self._raise
        self._tables: dict[str, dict[str, BoundKey]] = {screen: {} for screen in ("", *SCREENS)}
        for command in REGISTRY.values():
            screen = "" if command.anywhere else command.screen
            for key in filter(None, command.keys.split(",")):
                self._tables[screen][key] = BoundKey(key, (command.name,), command=command)
        for section in self._settings.keys:
            self._choose(section)
        for bound in self._tables[""].values():
            if bound.written:
                self._refuse_hidden(bound)
        for command in REGISTRY.values():
            if command.by_row:
                own = self._tables[command.screen]
                for bound in self._tables[""].values():
                    if bound.lines == ("table.select",):
                        own.setdefault(bound.key, replace(bound, command=command))

    def of(self, screen: str) -> tuple[BoundKey, ...]:
        """Return the keys of a screen, or of all screens (`""`): first those with a command of the
        registry, in its order, then the others."""
        order = {name: place for place, name in enumerate(REGISTRY)}
        return tuple(
            sorted(
                self._tables[screen].values(),
                key=lambda bound: order[bound.command.name] if bound.command else len(order),
            )
        )

    def keys(self, name: str, screen: str) -> str:
        """Return the keys of a command on a screen, with commas, the user's keys first."""
        bound = (self._tables[""] | self._tables[screen]).values()
        return ",".join(each.key for each in bound if each.command and each.command.name == name)

    def _choose(self, section: str) -> None:
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
        # The footer and the help show the first key.
        self._tables[section] = {**chosen, **{k: usual[k] for k in usual if k not in chosen}}

    def _refuse_hidden(self, bound: BoundKey) -> None:
        """Refuse a key of all screens that a screen's own key in the registry would hide."""
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
    """Return the command of a line; `@NAME` plays a tape. Raises UsageError."""
    if not line.startswith("@"):
        return line
    name = line[1:]
    if not _is_tape(name, settings.macros):
        raise UsageError(f"{line!r} is no tape", hint="keys to press stand alone, not in a list")
    if name.endswith(_TAPE) and name not in settings.macros:
        name = beside(Path(settings.origin), name)
        check_tape(name)
    return f"macro.play {quoted(name)}"


def _is_tape(name: str, tapes: Mapping[str, str]) -> bool:
    """Whether the name is a tape, not keys. Raises UsageError for an unknown tape."""
    # Imported here: the module imports this package.
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
