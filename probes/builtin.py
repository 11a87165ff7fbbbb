"""What built-in probes share: sources that an operator edits, compiled and told apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bpf.compiler import Compiled, CompiledMap, CompiledProgram, Diagnostic
from bpf.errors import UsageError

if TYPE_CHECKING:
    from probes.config import ProbeConfig, Side


@dataclass(frozen=True, slots=True)
class CompiledSides:
    """A built-in probe with edited sources, compiled; its descriptors are closed by `close`."""

    config: ProbeConfig
    function: str
    """The program that its hook calls."""
    sides: Mapping[Side, Compiled]

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(d for compiled in self.sides.values() for d in compiled.diagnostics)

    def programs(self) -> Iterator[tuple[Side, CompiledProgram]]:
        """The program of each direction."""
        return ((side, compiled.programs[self.function]) for side, compiled in self.sides.items())

    def close(self) -> None:
        for compiled in self.sides.values():
            compiled.close()


def refuse_other_changes(here: ProbeConfig, given: ProbeConfig) -> None:
    """UsageError where more than sources differ."""
    mine, theirs = _all_but_sources(here), _all_but_sources(given)
    if changed := [key for key in mine if theirs[key] != mine[key]]:
        raise UsageError(
            f"of the {here.name} probe only the sources can be replaced, not what {changed[0]} says"
        )


def _all_but_sources(config: ProbeConfig) -> dict[str, Any]:
    return config.model_dump(exclude={"ingress": {"source"}, "egress": {"source"}})


def check_programs(compiled: Compiled, side: Side, functions: tuple[str, ...]) -> None:
    """UsageError where a program is missing that user space loads."""
    for function in functions:
        if function not in compiled.programs:
            raise UsageError(f"{side}: the source must have the program {function}")


def check_maps(compiled: Compiled, side: Side, expected: Mapping[str, tuple[object, ...]]) -> None:
    """UsageError where a map, by name, is not of the `shape_of` that user space reads it by."""
    for name, shape in expected.items():
        found = compiled.maps.get(name)
        if found is None or shape_of(found) != shape:
            what = "is gone" if found is None else "has another kind, layout or size"
            raise UsageError(f"{side}: map {name} {what}, and the probe's table is read by it")


def shape_of(declared: CompiledMap) -> tuple[object, ...]:
    """What reading a map relies on."""
    return declared.spec, declared.key, declared.value
