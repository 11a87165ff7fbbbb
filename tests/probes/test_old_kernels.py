"""Programs for old kernels have no instruction and call no helper that is newer than Linux 5.10.

Path tracing needs Linux 5.12.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from bpf.attach.attachment import Hook
from bpf.attach.interface import AnyHook, EventHook, Interface
from bpf.compiler import Compiler, client
from bpf.kernel_types import resolve_offsets
from probes.config.hook_choice import hook_of
from probes.config.model import load
from probes.monitor import programs
from probes.monitor.options import Input, MonitorOptions
from probes.netflow.generator import FEATURES, Method, source

APPLICATIONS = sorted(Path(programs.__file__).with_name("applications").glob("*.toml"))
NEED_PACKETS = {"tcp_health"}
"""Applications that refuse the records of telemetry."""
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.c"))
INTERFACE = Interface("lo", 1, True)
LAST_HELPER = 155
"""bpf_redirect_peer: the last of enum bpf_func_id in Linux 5.10."""
_CALL, _ATOMIC_CLASS = 0x85, (0xDB, 0xC3)


@pytest.fixture(scope="module")
def old() -> Iterator[Compiler]:
    """A compiler that takes this kernel for an old one."""
    with pytest.MonkeyPatch.context() as patch, Compiler() as compiler:
        macros = {"HAS_COARSE_CLOCK": 0, "HAS_ATOMICS": 0}
        patch.setattr(client, "kernel_macros", lambda: macros)
        yield compiler


def check(
    compiler: Compiler,
    text: str,
    hook: AnyHook,
    macros: Mapping[str, object] = MappingProxyType({}),
    headers: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Assert that all programs of a source are made for Linux 5.10."""
    flags = [f"-D{name}={value}" for name, value in {hook.macro: 1, **macros}.items()]
    with compiler.compile(
        text, hook.prog_type, attach_type=hook.attach_type, cflags=flags, headers=headers
    ) as compiled:
        for program in compiled.programs.values():
            for code, registers, _, number in struct.iter_unpack("<BBhi", program.instructions):
                if code == _CALL and registers >> 4 == 0:
                    assert number <= LAST_HELPER, program.name
                if code in _ATOMIC_CLASS:
                    assert number == 0, program.name  # plain addition


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Input.REGULAR, Input.TELEMETRY], ids=str)
def test_the_monitor(old: Compiler, kind: Input) -> None:
    options = MonitorOptions(bits=8, input=kind, seed="test")
    macros = programs.macros_of(options, INTERFACE, Hook.TC_INGRESS)
    macros |= programs.own_macros(options)
    check(old, programs.SOURCE.read_text(), Hook.TC_INGRESS, macros)


@pytest.mark.parametrize("path", APPLICATIONS, ids=lambda path: path.stem)
@pytest.mark.parametrize("kind", [Input.REGULAR, Input.TELEMETRY], ids=str)
def test_the_applications(old: Compiler, path: Path, kind: Input) -> None:
    if kind is Input.TELEMETRY and path.stem in NEED_PACKETS:
        return
    options = MonitorOptions(bits=8, input=kind, seed="test")
    for side, direction in load(path).directions():
        hook = Hook.TC_INGRESS if side == "ingress" else Hook.TC_EGRESS
        macros = programs.macros_of(options, INTERFACE, hook) | direction.define
        check(old, direction.source, hook, macros, direction.headers)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples(old: Compiler, path: Path) -> None:
    for side, direction in load(path.with_suffix(".toml")).directions():
        text = direction.source
        hook = hook_of(side, direction)
        if isinstance(hook, EventHook):
            check(old, resolve_offsets(text), hook)
        else:
            usual = Hook.TC_INGRESS if "__sk_buff" in text else Hook.XDP
            check(old, text, hook or usual, {"LINK_ETHERNET": 1, **direction.define})


@pytest.mark.parametrize("method", Method, ids=str)
def test_netflow(old: Compiler, method: Method) -> None:
    check(old, source(FEATURES, method), Hook.XDP, {"LINK_ETHERNET": 1})
