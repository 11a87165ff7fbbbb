"""A configuration, compiled and verified, and the memory that it would take."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bpf.attach.interface import AnyHook, Interface
from bpf.compiler import Compiled, CompiledMap, CompiledProgram
from bpf.compiler.quota import map_bytes
from bpf.errors import UsageError
from bpf.machine import possible_cpus
from bpf.maps.kinds import map_memory
from probes.config.map_config import MapOptions
from probes.config.model import DirectionConfig, ProbeConfig, Side
from probes.hooks import HookKey
from probes.life import CompiledConfig
from probes.memory_limit import size_text
from probes.program.metrics import MetricMap


@dataclass(frozen=True, slots=True)
class CompiledSide:
    """One direction, compiled and verified."""

    side: Side
    config: DirectionConfig
    interface: Interface
    hook: AnyHook
    compiled: Compiled
    program: CompiledProgram
    metric_maps: tuple[MetricMap, ...]
    options: Mapping[str, MapOptions]
    """Options of the maps that the source declares, by name."""

    @property
    def hook_key(self) -> HookKey:
        return HookKey.of(self.interface, self.hook, monitored=self.config.hook == "monitor")

    @property
    def private(self) -> set[str]:
        """Names of the maps that each clone has a copy of."""
        return {each.map_name for each in self.metric_maps if each.private}

    @property
    def shared(self) -> list[str]:
        """Names of the maps that it shares with other programs."""
        return [name for name, options in self.options.items() if options.share]

    @property
    def declared(self) -> Mapping[str, CompiledMap]:
        return self.compiled.maps


@dataclass(frozen=True, slots=True)
class CompiledProbe(CompiledConfig):
    """A user's probe, compiled and verified."""

    sides: tuple[CompiledSide, ...]

    def results(self) -> Iterator[tuple[Side, Compiled, str]]:
        return ((side.side, side.compiled, side.program.name) for side in self.sides)

    def memory(self, kept: Container[tuple[Side, str]] = ()) -> int:
        """As for any configuration. A map of a snapshot metric counts twice."""
        return sum(
            map_memory(made.fd) * (2 if name in side.private else 1)
            for side in self.sides
            for name, made in side.declared.items()
            if (side.side, name) not in kept
        )


def check_memory(config: ProbeConfig, sides: Sequence[CompiledSide], limit: int) -> None:
    """Raise UsageError if one generation's maps would take more than `limit` bytes."""
    cpus = possible_cpus()
    total = 0
    for side in sides:
        for name, declared in side.declared.items():
            spec = declared.spec
            sizes = spec.key_size, spec.value_size, spec.max_entries
            total += map_bytes(spec.type, *sizes, cpus) * (2 if name in side.private else 1)
    if total > limit:
        raise UsageError(
            f"{config.origin}: its maps take {size_text(total)}, "
            f"and a probe may have {size_text(limit)}",
            hint="make them smaller, or see --probe-memory; a snapshot metric has two maps",
        )
