"""Shared and writable maps: checks of their options, and their creation."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from bpf.compiler import Compiled, CompiledMap, Diagnostic
from bpf.errors import ProbedeckError, UsageError, did_you_mean
from bpf.machine import possible_cpus
from bpf.maps.kinds import Shape
from bpf.maps.layout import round_up
from bpf.syscall import map_update
from probes.config.map_config import MapOptions
from probes.config.model import DirectionConfig, ProbeConfig
from probes.program.compiled import CompiledSide
from probes.program.metrics import make_map
from probes.sharing import SharedMaps
from probes.tables.entries import EntryCodec
from probes.tables.map_layout import difference


def check_maps(
    config: ProbeConfig,
    maps: Mapping[str, MapOptions],
    sides: Sequence[CompiledSide],
    shared: SharedMaps,
) -> None:
    """Raise UsageError, which names the key, for the first impossible option of `maps`.

    `maps` has the options in `config`, and those of extern maps.
    """
    for name, options in maps.items():
        where = f"{config.origin}: maps.{name}"
        declared = [side.declared[name] for side in sides if name in side.declared]
        if not declared:
            every = sorted({other for side in sides for other in side.declared})
            raise UsageError(
                f"{where}: no source declares this map",
                hint=did_you_mean(name, every) or "the name of a map in the source",
            )
        if options.share:
            if len(declared) > 1 and (why := difference(declared[0], declared[1])):
                hint = "declare it alike in both directions"
                raise UsageError(f"{where}.share: egress declares another map: {why}", hint=hint)
            known_as = shared_name(config.name, name, options.share)
            try:
                shared.check(known_as, config.name, declared[0])
            except UsageError as error:
                raise UsageError(f"{where}.share: {error.message}", hint=error.hint) from None
        if options.writable:
            if len(declared) > 1 and not options.share:
                hint = 'give share = "probe" to make them one'
                raise UsageError(f"{where}: each direction declares its own map", hint=hint)
            _check_writable(where, options, declared[0])


def shared_name(probe: str, map_name: str, share: str) -> str:
    """Return the name of a shared map in SharedMaps; `PROBE/MAP` is private to a probe."""
    return f"{probe}/{map_name}" if share == "probe" else share


def new_map(declared: CompiledMap, options: MapOptions | None) -> int:
    """Create a map with the entries of its options; return its descriptor.

    Raises KernelError if that fails, ProbedeckError if the kernel refuses an entry.
    """
    fd = make_map(declared)
    with ExitStack() as undo:
        undo.callback(os.close, fd)
        if options and options.entries:
            for key, value in _entries(f"map {declared.spec.name}", declared, options):
                write_entry(declared, fd, key, value)
        undo.pop_all()
    return fd


def write_entry(declared: CompiledMap, fd: int, key: bytes, value: bytes) -> None:
    """Store an entry, for every CPU if the map is per CPU.

    Raises ProbedeckError if the map is full or the kernel refuses.
    """
    # The value of each CPU takes a multiple of 8 bytes. Other maps take the first value.
    values = value.ljust(round_up(len(value), 8), b"\0") * possible_cpus()
    try:
        map_update(fd, key, values)
    except OSError as error:
        raise ProbedeckError(
            f"map {declared.spec.name} takes no more entries: {error.strerror}",
            hint=f"it has room for {declared.spec.max_entries}",
        ) from None


def codecs_of(
    options: Mapping[str, MapOptions], declared: Mapping[str, CompiledMap]
) -> dict[str, EntryCodec]:
    """Return the codecs of the writable maps, by name."""
    return {
        name: EntryCodec(declared[name], each.types)
        for name, each in options.items()
        if each.writable
    }


def inexact_metrics(compiled: Compiled, direction: DirectionConfig) -> Iterator[Diagnostic]:
    """Yield a note for each exported map that an export empties while packets write it."""
    for metric in direction.metrics:
        found = compiled.readable[metric.map]
        if metric.export and metric.init and not (metric.snapshot or found.spec.kind.is_queue):
            text = (
                f"{metric.name} empties {metric.map} while packets write it: what they count at "
                "that moment may be missing or counted twice; snapshot = true is exact"
            )
            yield Diagnostic(compiled.name, found.line, 0, "note", text)


def _check_writable(where: str, options: MapOptions, declared: CompiledMap) -> None:
    kind = declared.spec.kind
    if kind.shape not in (Shape.HASH, Shape.ARRAY, Shape.LPM):
        hint = "an operator can write a hash, an array or a trie"
        raise UsageError(f"{where}.writable: it is a {kind.name}", hint=hint)
    if declared.unreadable:
        raise UsageError(f"{where}.writable: {declared.unreadable}", hint="use types of fixed size")
    _entries(where, declared, options)


def _entries(where: str, declared: CompiledMap, options: MapOptions) -> list[tuple[bytes, bytes]]:
    """Return the bytes of the entries of the options. Raises UsageError for an invalid one."""
    codec = EntryCodec(declared, options.types)
    return [
        (codec.key(entry.key, place), codec.value(entry.value, place))
        for number, entry in enumerate(options.entries)
        for place in [f"{where}.entries[{number}]"]
    ]
