"""Compiles and loads a configuration; packets do not reach its programs yet (Algorithm 1).

Each direction is compiled once. If it has a snapshot metric, the program is loaded twice: the
clone has the same bytecode and its own maps for snapshot metrics. The clones share all other maps,
also with the previous generation if the layout is the same.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import MappingProxyType

from bpf.attach.interface import AnyHook, EventHook, Hook, Interface
from bpf.compiler import (
    Compiled,
    CompiledMap,
    CompiledProgram,
    CompileError,
    Compiler,
    Diagnostic,
)
from bpf.compiler.compiled import map_places, unserved_maps
from bpf.compiler.diagnostics import parse_verifier
from bpf.compiler.records import (
    RECORDS_HEADER,
    describe_records,
    record_types,
    variables,
    with_records,
)
from bpf.compiler.source import code_of, prelude_macros
from bpf.errors import KernelError, UsageError
from bpf.kernel_types import resolve_offsets
from bpf.maps.kinds import map_memory
from bpf.maps.map import Map
from bpf.objects.lost_records import count_lost_records
from bpf.programs.program import Program
from bpf.syscall import VerifierError
from probes.config.hook_choice import hook_of
from probes.config.map_config import MapOptions, Metric
from probes.config.metric_checks import check_metrics
from probes.config.model import SIDES, DirectionConfig, ProbeConfig, Side
from probes.hooks import Hooks
from probes.hooks.interface_hook import macros_of
from probes.losses import LOSSES, LossTotals, counts_losses
from probes.program.compiled import CompiledProbe, CompiledSide, check_memory
from probes.program.map_options import (
    check_maps,
    codecs_of,
    inexact_metrics,
    new_map,
    shared_name,
)
from probes.program.metrics import MetricMap, make_map, open_map
from probes.snapshot import Loss, LossReason
from probes.tables.conversion import TableSchema, schema_of

_EXTERN = re.compile(
    r'\bBPF_TABLE\s*\(\s*"extern"\s*,(?P<types>[^()]*),\s*(?P<name>\w+)\s*,[^(),]*\)'
)
"""Shared maps as in bcc: `BPF_TABLE("extern", ...)` names a map of another source."""


def compile_probe(compiler: Compiler, config: ProbeConfig, hooks: Hooks) -> CompiledProbe:
    """Compile every direction, and check the metrics against the result.

    `hooks` has the monitors, for applications. Raises CompileError for a source, and UsageError,
    which names the key, for other mistakes.
    """
    sides: list[CompiledSide] = []
    maps = dict(config.maps)

    def find(name: str) -> CompiledMap | None:
        """Return the declaration of an extern map in the other direction, or of a shared map."""
        for known in sides:
            if name in known.declared:
                given = maps.get(name, MapOptions(share="probe"))
                maps[name] = given.model_copy(update={"share": given.share or "probe"})
                return known.declared[name]
        share = maps[name].share if name in maps else ""
        return hooks.maps.declared(shared_name(config.name, name, share)) if share else None

    try:
        # A direction with extern maps comes after the one that declares them.
        order = sorted(config.directions(), key=lambda each: bool(_externs(each[1].source)))
        for side, direction in order:
            given = map_places(direction.prelude_text + _EXTERN.sub("", direction.source))
            source = _resolved(direction.source, f"{config.name}.{side}.c", find, given)
            sides.append(_compile_side(compiler, config, side, direction, source, hooks))
        for name in _common_maps(sides):
            options = maps.get(name, MapOptions(share="probe"))
            maps[name] = options.model_copy(update={"share": options.share or "probe"})
        sides = [
            replace(side, options={n: o for n, o in maps.items() if n in side.declared})
            for side in sorted(sides, key=lambda each: SIDES.index(each.side))
        ]
        check_maps(config, maps, sides, hooks.maps)
        check_memory(config, sides, compiler.map_limit)
    except BaseException:
        CompiledProbe(config, tuple(sides)).close()
        raise
    return CompiledProbe(config, tuple(sides))


def _common_maps(sides: Sequence[CompiledSide]) -> Iterator[str]:
    """Yield the maps that programs of one object share, as they do with libbpf's own loader.

    Maps of snapshot metrics are each direction's own.
    """
    if len(sides) != 2 or not all(side.config.is_for_libbpf for side in sides):
        return
    one, other = sides
    if any(
        getattr(one.config, part) != getattr(other.config, part)
        for part in ("source", "object", "headers", "define")
    ):
        return
    for name, declared in one.declared.items():
        is_own = name in one.private | other.private or declared.is_constant or declared.slots
        if name in other.declared and not is_own:
            yield name


def _compile_side(
    compiler: Compiler,
    config: ProbeConfig,
    side: Side,
    direction: DirectionConfig,
    source: str,
    hooks: Hooks,
) -> CompiledSide:
    wish = hook_of(side, direction)
    headers: Mapping[str, str] = direction.headers
    for_libbpf = direction.is_for_libbpf
    if isinstance(wish, EventHook):
        interface = Interface(wish.place, 0, ethernet=False)
        source = resolve_offsets(source)
        headers = {name: resolve_offsets(text) for name, text in headers.items()}
    elif direction.interface:
        interface = hooks.find(direction.interface)
    else:
        raise UsageError(
            f"{config.origin}: {side}.interface: it is missing",
            hint=f"one of {', '.join(name for _, name in socket.if_nameindex())}",
        )
    hook: AnyHook
    monitored = hooks.monitored(interface) if direction.hook == "monitor" else None
    if monitored:
        hook, macros = monitored.hook, monitored.macros
    elif isinstance(wish, EventHook):
        hook, macros = wish, macros_of(interface, wish)
    else:
        reason = "the source is for XDP only" if wish is Hook.XDP and not direction.hook else ""
        hook = hooks.choose(interface, wish, reason).hook
        macros = macros_of(interface, hook)
    wanted = {metric.map: metric.record for metric in direction.metrics}
    records = record_types("\n".join((source, *headers.values())), wanted)
    if direction.object:
        records = {name: type_ for name, type_ in wanted.items() if type_}
    preludes = [RECORDS_HEADER] if records and LOSSES not in map_places(source) else []
    if direction.prelude:
        preludes.append(direction.prelude)
        macros = {**macros, **prelude_macros(source, _externs(direction.source))}
    if for_libbpf and monitored:
        raise UsageError(
            f"{config.origin}: {side}.{'object' if direction.object else 'source'}: "
            "it is for libbpf",
            hint="an application is written for bcc",
        )
    if not for_libbpf:
        if path := next((name for name in direction.define if "." in name), ""):
            raise UsageError(
                f"{config.origin}: {side}.define.{path}: C for bcc has no variables",
                hint="define a macro",
            )
        macros = {**macros, **direction.define}
    cflags = [f"-D{name}={value}" for name, value in macros.items()]
    jumps = {name: each.programs for name, each in config.maps.items() if each.programs}
    if for_libbpf and direction.prelude:
        cflags += ["-include", direction.prelude]
    if for_libbpf:
        compiled = compiler.objects.compile(
            source + variables(records) if records and not direction.object else source,
            hook.prog_type,
            attach_type=hook.attach_type,
            name=f"{config.name}.{side}.{'o' if direction.object else 'c'}",
            headers=headers,
            define=direction.define,
            cflags=cflags,
            function=direction.function,
            map_limit=compiler.map_limit,
            data=direction.data,
        )
    else:
        described = describe_records(records)
        compiled = compiler.compile(
            "\n".join((source, *(f'#include "{name}"' for name in described))),
            hook.prog_type,
            attach_type=hook.attach_type,
            name=f"{config.name}.{side}.c",
            cflags=cflags,
            headers={**headers, **described},
            preludes=preludes,
            function="" if jumps else direction.function,
            map_limit=compiler.map_limit,
        )
    with ExitStack() as undo:
        undo.enter_context(compiled)
        if for_libbpf:
            compiled = with_records(compiled, records)
            if any(found.spec.kind.records for found in compiled.maps.values()):
                counts = LOSSES, len(LossReason), LossReason.TABLE_FULL
                compiled = count_lost_records(compiled, *counts)
                undo.pop_all()
                undo.enter_context(compiled)
        compiled = compiled.with_jumps(jumps, f"{config.origin}: maps")
        if monitored:
            monitored.prepare(compiled)
        served = {
            *jumps,
            *(monitored.shared if monitored else ()),
            *(metric.map for metric in direction.metrics),
        }
        specs = [found.spec for found in compiled.maps.values()]
        unserved = unserved_maps(compiled.name, direction.source, specs, served)
        program = _program_of(config, side, direction, compiled)
        if isinstance(hook, EventHook):
            hook.check(program.loaded())
        check_metrics(config, side, compiled.readable)
        remarks = (*unserved, *inexact_metrics(compiled, direction))
        compiled = replace(compiled, diagnostics=(*compiled.diagnostics, *remarks))
        metric_maps = tuple(_metric_maps(direction, compiled))
        undo.pop_all()
    return CompiledSide(side, direction, interface, hook, compiled, program, metric_maps, {})


def _program_of(
    config: ProbeConfig, side: Side, direction: DirectionConfig, compiled: Compiled
) -> CompiledProgram:
    names = compiled.functions
    key = f"{config.origin}: {side}"
    if direction.function:
        if program := compiled.programs.get(direction.function):
            return program
        raise UsageError(
            f"{key}.function: the source has no program {direction.function!r}",
            hint=f"it has {', '.join(names)}" if names else "make a function not static",
        )
    if not names:
        hint = "one function must not be static"
        if direction.is_for_libbpf:
            hint = 'one function needs a section of this hook, such as SEC("xdp") or SEC("tc")'
        raise UsageError(f"{key}.source: it has no program", hint=hint)
    if len(names) > 1:
        raise UsageError(
            f"{key}.source: it has {len(names)} programs ({', '.join(names)})",
            hint=f"name one with {side}.function"
            + ("" if direction.is_for_libbpf else ", or make the others static"),
        )
    return compiled.programs[names[0]]


def _metric_maps(direction: DirectionConfig, compiled: Compiled) -> list[MetricMap]:
    by_map: dict[str, list[tuple[Metric, TableSchema]]] = {}
    for metric in direction.metrics:
        found = compiled.readable[metric.map]
        schema = schema_of(found, metric.types, metric.help)
        schema = replace(schema, adds_up=_adds_up(metric, found))
        by_map.setdefault(metric.map, []).append((metric, schema))
    return [
        MetricMap(compiled.readable[name], metrics, direction.expiry(metrics[0][0]))
        for name, metrics in by_map.items()
    ]


def _adds_up(metric: Metric, found: CompiledMap) -> bool:
    """Whether values of windows may be added: a struct may hold more than counts, unless the
    configuration adds up its values of the CPUs."""
    if not (metric.snapshot or metric.init):
        return False
    is_number = found.value is not None and found.value.names is None
    return metric.agg == "sum" or (not metric.agg and is_number)


def _externs(source: str) -> list[str]:
    """Return the names of a source's extern maps."""
    code = code_of(source)
    return [m["name"] for m in _EXTERN.finditer(source) if code.startswith("BPF_TABLE", m.start())]


def _resolved(
    source: str, file: str, find: Callable[[str], CompiledMap | None], given: Container[str]
) -> str:
    """Return `source` with each extern map declared as `find` knows it. Lines keep their numbers.

    The prelude or the source itself declares the maps `given`.

    The compiler does not know the map: it no longer has the other source. Raises CompileError,
    with the line in `file`, for a map that `find` does not know.
    """
    names = set(_externs(source))

    def declare(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in names:
            return match[0]
        if name in given:
            return "\n" * match[0].count("\n")
        found = find(name)
        if found is None:
            line = source.count("\n", 0, match.start()) + 1
            text = f"no program declares map {name}: declare it in the other direction, or in a "
            text += f"probe that runs and shares it as this one does (maps.{name}.share)"
            raise CompileError(file, [Diagnostic(file, line, 0, "error", text)])
        spec = found.spec
        arguments = f'"{spec.type.name.lower()}",{match["types"]}, {match["name"]}'
        rest = "\n" * (match[0].count("\n") - match["types"].count("\n"))
        return f"BPF_F_TABLE({arguments}, {spec.max_entries}, {int(spec.flags)}{rest})"

    return _EXTERN.sub(declare, source)


class Clone:
    """One of the programs of a direction, with its own maps for snapshot metrics."""

    def __init__(self, side: CompiledSide, shared: Mapping[str, int], next_fd: int) -> None:
        self._own: dict[str, int] = {}
        self.maps: dict[str, Map] = {}
        """Maps of snapshot metrics, by name."""
        with ExitStack() as undo:
            for metric_map in side.metric_maps:
                if metric_map.private:
                    name = metric_map.map_name
                    if name not in self._own:
                        self._own[name] = make_map(side.declared[name])
                        undo.callback(os.close, self._own[name])
                    fd = self._own[name]
                    self.maps[metric_map.name] = undo.enter_context(metric_map.open(fd))
            name, maps = side.program.name, {**shared, **self._own}
            try:
                self.program = Program(side.compiled, name, shared=maps, next_fd=next_fd)
            except VerifierError as error:
                stack = 480 if side.program.has_frames else 504
                raise KernelError(
                    f"{side.side} cannot be put in a chain: {parse_verifier(name, error.log).text}",
                    hint=f"a probe may use {stack} bytes of stack",
                ) from None
            undo.callback(self.program.close)
            self.close = undo.pop_all().close

    def memory(self) -> int:
        """Return the bytes of kernel memory of the maps that it does not share."""
        return sum(map(map_memory, self._own.values()))


class LoadedSide:
    """One direction of a generation: its clones, and their shared maps."""

    def __init__(
        self,
        compiled: CompiledSide,
        next_fd: int,
        kept: Mapping[str, int] = MappingProxyType({}),
        before: LoadedSide | None = None,
    ) -> None:
        """Load the programs. `kept` are maps of other programs, by name; the caller owns them.

        `before` is this direction of the previous generation; its maps are among `kept`.
        Raises KernelError or UsageError, and then leaves nothing behind.
        """
        self.side = compiled.side
        self.config = compiled.config
        self.interface = compiled.interface
        self.hook = compiled.hook
        self.hook_key = compiled.hook_key
        self.function = compiled.program.name
        self.metric_maps = compiled.metric_maps
        self.declared: Mapping[str, CompiledMap] = compiled.compiled.maps
        """Declarations of its maps; their descriptors are closed."""
        self.options = compiled.options
        self.codecs = codecs_of(compiled.options, self.declared)
        """Codecs of the writable maps, by name."""
        self.active = 0
        self.clones: list[Clone] = []
        self.shared: dict[str, int] = {}
        """Descriptors of the shared maps, by name."""
        self._maps: dict[str, Map] = {}
        self._losses: LossTotals | None = None
        self.private = compiled.private
        with ExitStack() as undo:
            for name, declared in self.declared.items():
                # Of a program array each clone has its own: the called programs count in its maps.
                if name not in self.private and not declared.slots:
                    old = kept.get(name)
                    made = new_map(declared, self.options.get(name)) if old is None else os.dup(old)
                    self.shared[name] = made
                    undo.callback(os.close, made)
            for metric_map in compiled.metric_maps:
                if not metric_map.private:
                    opened = metric_map.open(self.shared[metric_map.map_name])
                    self._maps[metric_map.name] = undo.enter_context(opened)
            unread = self.shared.keys() - self._maps.keys()
            if LOSSES in unread and counts_losses(self.declared[LOSSES]):
                counted = open_map(self.declared[LOSSES], self.shared[LOSSES])
                # The count of the previous generation goes on if it had the same map.
                was = before._losses if before and LOSSES in kept else None
                self._losses = LossTotals(counted, was.reported if was else None)
                undo.callback(self._losses.close)
            for _ in range(2 if self.private else 1):
                self.clones.append(Clone(compiled, self.shared, next_fd))
                undo.callback(self.clones[-1].close)
            self.close = undo.pop_all().close

    @property
    def program(self) -> Program:
        return self.clones[self.active].program

    def map_of(self, metric_map: MetricMap, clone: Clone) -> Map:
        """Return the map of a metric, of this clone if it is private."""
        return clone.maps[metric_map.name] if metric_map.private else self._maps[metric_map.name]

    def losses(self) -> dict[LossReason, Loss]:
        """Return the losses that the program counted by `lose()` since the last call."""
        return self._losses.take() if self._losses is not None else {}

    def memory(self) -> int:
        """Return the bytes of kernel memory of all its maps."""
        return sum(map(map_memory, self.shared.values())) + sum(
            clone.memory() for clone in self.clones
        )
