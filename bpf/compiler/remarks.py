"""Warnings about maps that a source declares and that cannot do what its author expects."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator

from bpf.abi import MapType
from bpf.compiler.diagnostics import Diagnostic
from bpf.compiler.source import place_of
from bpf.syscall import MapSpec

_UNSERVED = {
    MapType.PROG_ARRAY: "stays empty, so each tail call falls through; call a function instead",
    MapType.PERF_EVENT_ARRAY: "has no reader, so each submit fails; count in a map, or use a queue",
    MapType.RINGBUF: "has no reader and fills up; count in a map, or use a queue (BPF_QUEUE)",
    MapType.DEVMAP: "stays empty, so a redirect by it fails; use bpf_redirect() and an index",
    MapType.DEVMAP_HASH: "stays empty, so a redirect by it fails; use bpf_redirect() and an index",
    MapType.CPUMAP: "stays empty, so a redirect by it fails; return VERDICT_PASS",
    MapType.XSKMAP: "stays empty, so a redirect by it fails; return VERDICT_PASS",
    MapType.ARRAY_OF_MAPS: "stays empty: nobody puts a map into it",
    MapType.HASH_OF_MAPS: "stays empty: nobody puts a map into it",
    MapType.SOCKMAP: "stays empty: nobody puts a socket into it",
    MapType.SOCKHASH: "stays empty: nobody puts a socket into it",
    MapType.CGROUP_ARRAY: "stays empty: nobody puts a cgroup into it",
    MapType.STACK_TRACE: "gets no entry: programs of packets have no stack to walk",
}
"""Consequence for each kind that needs user space, and a way out."""


def unserved_maps(
    name: str, source: str, maps: Iterable[MapSpec], served: Container[str] = ()
) -> Iterator[Diagnostic]:
    """Yield a warning for each map that user space would have to fill or read.

    `served` are the names of maps that the controller itself fills.
    """
    for spec in maps:
        if spec.type in _UNSERVED and spec.name not in served:
            text = f"{spec.name} ({spec.kind.name}) {_UNSERVED[spec.type]}"
            yield Diagnostic(name, *place_of(source, spec.name), "warning", text)


def no_inserts(name: str, source: str, maps: Iterable[MapSpec]) -> Iterator[Diagnostic]:
    """Yield a warning for bcc's increment(), which inserts into a plain hash only, in silence."""
    for spec in maps:
        if not spec.kind.increment:
            line, column = place_of(source, rf"{spec.name}\s*\.\s*(?:atomic_)?increment")
            text = f"increment() inserts nothing into a {spec.kind.name}; use lookup_or_try_init()"
            if line:
                yield Diagnostic(name, line, column, "warning", text)
