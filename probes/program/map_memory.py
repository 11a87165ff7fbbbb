"""The limit of memory that the maps of a user's probe may take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bpf.compiler.quota import map_bytes
from bpf.errors import UsageError
from bpf.syscall import possible_cpus
from probes.config.model import ProbeConfig
from probes.memory_limit import size_text

if TYPE_CHECKING:
    from probes.program.loading import CompiledSide


def check_memory(config: ProbeConfig, sides: Sequence[CompiledSide], limit: int) -> None:
    """Raise UsageError if one generation's maps would take more than `limit` bytes."""
    cpus = possible_cpus()
    total = 0
    for side in sides:
        twice = {metric_map.name for metric_map in side.metric_maps if metric_map.private}
        for name, declared in side.declared.items():
            spec = declared.spec
            sizes = spec.key_size, spec.value_size, spec.max_entries
            total += map_bytes(spec.type, *sizes, cpus) * (2 if name in twice else 1)
    if total > limit:
        raise UsageError(
            f"{config.origin}: its maps take {size_text(total)}, "
            f"and a probe may have {size_text(limit)}",
            hint="make them smaller, or see --probe-memory; a snapshot metric has two maps",
        )
