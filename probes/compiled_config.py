"""A compiled configuration of a user's or a built-in probe, before packets reach it."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from bpf.compiler import Compiled, CompiledProgram, Diagnostic

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig, Side


@dataclass(frozen=True, slots=True)
class CompiledConfig:
    """A compiled and verified configuration; `close` closes its descriptors."""

    config: ProbeConfig

    def results(self) -> Iterator[tuple[Side, Compiled, str]]:
        """Yield each direction with the compiler's result and the name of its program."""
        raise NotImplementedError

    @property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        return tuple(d for _, compiled, _ in self.results() for d in compiled.diagnostics)

    def programs(self) -> Iterator[tuple[Side, CompiledProgram]]:
        """Yield the program of each direction; its maps are copies for the verifier."""
        return ((side, compiled.programs[name]) for side, compiled, name in self.results())

    def map_fds(self) -> Iterator[int]:
        """Yield the descriptors of these maps."""
        return (each.fd for _, compiled, _ in self.results() for each in compiled.maps.values())

    def memory(self, kept: Container[tuple[Side, str]] = ()) -> int:
        """Return the bytes of kernel memory that new maps take, without the maps in `kept`."""
        return 0

    def close(self) -> None:
        for _, compiled, _ in self.results():
            compiled.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
