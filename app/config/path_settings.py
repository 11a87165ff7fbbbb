"""The options of path tracing: `[paths]`, options of commands, and `path.set` of the console."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from app.config.schema import setting, settings_of
from bpf.errors import TextError, UsageError, did_you_mean
from probes.path.options import Guard, Guarded, Order, PathOptions, Per

PATHS = "Paths"
"""Heading of the options in the help."""
_DEFAULT = PathOptions()


@dataclass(frozen=True, slots=True)
class PathSettings:
    """Options with the names and defaults of PathOptions."""

    PREFIX: ClassVar[str] = "path"

    rate: float = setting(PATHS, _DEFAULT.rate, "Most probes a second, 0.1 to 100000.", "N")
    per: Per = setting(PATHS, _DEFAULT.per, "Count the rate for each hop, or for a destination.")
    burst: int = setting(PATHS, _DEFAULT.burst, "Probes that one packet may cause, 1 to 8.", "N")
    order: Order = setting(
        PATHS, _DEFAULT.order, "Send the probe or the application's packet first."
    )
    guard: Guard = setting(PATHS, _DEFAULT.guard, "Defect that makes the destination drop a probe.")
    guarded: Guarded = setting(
        PATHS, _DEFAULT.guarded, "Guard probes that may reach the destination, or all probes."
    )
    pass_answers: bool = setting(PATHS, False, "Let the host see the answers, too.")
    timeout: float = setting(
        PATHS, _DEFAULT.timeout, "Count a probe as lost after this time, 0.05 to 60.", "SECONDS"
    )
    max_hops: int = setting(PATHS, _DEFAULT.max_hops, "Highest TTL or hop limit, 1 to 30.", "N")
    mtu: bool = setting(PATHS, False, "Find the path MTU by packets of several sizes.")

    @classmethod
    def of(cls, options: PathOptions) -> PathSettings:
        """Return the settings among the options of a probe."""
        return cls(**{name: getattr(options, name) for name in settings_of(PathSettings)})

    def options(self) -> PathOptions:
        """Return the options of a probe. Raises UsageError if they are impossible."""
        kinds = {"per": Per, "order": Order, "guard": Guard, "guarded": Guarded}
        given = asdict(self)
        made = PathOptions(**given | {name: kind(given[name]) for name, kind in kinds.items()})
        made.check()
        return made

    def problems(self) -> Iterator[tuple[str, UsageError]]:
        """Yield the mistakes of single values, each with the name of its field."""
        for name, value in asdict(self).items():
            try:
                PathSettings(**{name: value}).options()
            except UsageError as error:
                yield name, error

    def changed(self, text: str) -> PathSettings:
        """Return the settings after changes such as `guarded=all rate=50`. Raises TextError."""
        known, values = settings_of(PathSettings), dict[str, Any](asdict(self))
        at = 0
        for word in text.split():
            at = text.index(word, at)
            name, equals, value = word.partition("=")
            if name not in known or not equals:
                hint = did_you_mean(name, known)
                raise TextError(f"{word!r} is no NAME=VALUE of an option", text, at + 1, hint=hint)
            try:
                values[name] = known[name].of_text(value)
            except UsageError as error:
                said = error.within(text, at + len(name) + 1)
                problem = f"{name} {said.problem}"
                raise TextError(problem, text, said.column, hint=said.hint) from None
            at += len(word)
        return PathSettings(**values)


def words() -> tuple[str, ...]:
    """Return changes of options, as far as their values are known: `guarded=all`, `rate=`."""
    return tuple(
        f"{name}={value}"
        for name, each in settings_of(PathSettings).items()
        for value in each.choices or (("true", "false") if each.kind is bool else ("",))
    )
