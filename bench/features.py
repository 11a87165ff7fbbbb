"""Features by three methods, in XDP and TC: time a packet and memory (figures 6 and 7 of S1).

By BPF_PROG_TEST_RUN on frames of one flow, by turns: programs alone differ. Non-adaptive always has
all features. Figure 6 has counters, figure 7 the features of NetFlow beside pmacct or softflowd.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from bench.flow import FLOWS, constant
from bench.runner.cases import Case, Effort, Group, Line, MissingError, at_least, at_most
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from bpf.programs.program import VERDICT_PASS, Program, pack
from bpf.syscall import prog_load, prog_test_run
from probes.config.model import parse
from probes.hooks import Hooks
from probes.netflow.generator import FEATURES, Method
from probes.program.loading import compile_probe
from probes.program.probe import ProgramProbe
from tests.support.generator import frame

_REPEAT = 500_000
_COUNTS = (1, 2, 4, 6, 8, 10, 12, 14, 15)
_COUNTERS = (1, 2, 5, 10, 20, 50, 100)
_MOST = _COUNTERS[-1]
_HOOKS = {Hook.XDP: "xdp", Hook.TC_INGRESS: "tc"}
"""With the names that configurations have."""
_ENTRIES = 10_000
_PAPER_6 = "XDP 31.8 to 14.3 Mpps fully-adaptive, 14.3 non-adaptive, 2.8 adaptive"
_PAPER_7 = "XDP 31.7 to 7.63 Mpps, TC 3.34 to 3.03, nProbe 1.44"
_GENERAL = """
#include "probe.h"

struct features { u64 counter[COUNT]; };
BPF_TABLE("array", u32, struct features, features, ENTRIES);
BPF_ARRAY(enabled, u8, MOST);

/* So many counters of a packet's entry; adaptive: each only if its bit is set. */
int
count(CONTEXT *ctx)
{
    u32 zero = 0;
    struct features *at = features.lookup(&zero);
    if (!at)
        return VERDICT_PASS;
%s
    return VERDICT_PASS;
}
"""
_PCAP = struct.Struct("<IHHiIII")


def ns_of(fd: int, repeat: int) -> float:
    return prog_test_run(fd, frame(4), repeat=repeat).duration_ns


def floors(stack: ExitStack) -> dict[Hook, int]:
    """Load a program that only returns, by hook; its descriptor is closed with the process."""
    found = {}
    for hook in _HOOKS:
        kind = hook.prog_type
        code = pack([(0xB7, 0, 0, VERDICT_PASS[kind]), (0x95, 0, 0, 0)])
        found[hook] = prog_load(code, kind, "floor")
        stack.callback(os.close, found[hook])
    return found


def counters(compiler: Compiler, hook: Hook, method: Method, count: int) -> Program:
    """Return a program with so many counters in use."""
    has = count if method is Method.FULLY_ADAPTIVE else _MOST
    lines = []
    for number in range(has):
        line = f"    at->counter[{number}]++;"
        if method is Method.ADAPTIVE:
            key, value = f"k{number}", f"e{number}"
            line = (f"    u32 {key} = {number}; u8 *{value} = enabled.lookup(&{key});\n"
                    f"    if ({value} && *{value})\n    {line}")  # fmt: skip
        lines.append(line)
    macros = {hook.macro: 1, "LINK_ETHERNET": 1, "COUNT": has, "MOST": _MOST, "ENTRIES": _ENTRIES}
    flags = [f"-D{name}={value}" for name, value in macros.items()]
    source = _GENERAL % "\n".join(lines)
    with compiler.compile(source, hook.prog_type, name="counters.c", cflags=flags) as compiled:
        program = Program(compiled, "count")
    if method is Method.ADAPTIVE:
        from bpf.syscall import map_update

        for number in range(count):
            map_update(program.map_fd("enabled"), number.to_bytes(4, "little"), b"\1")
    return program


def figure_6(hook: Hook, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """1 to 100 counters by three methods."""
    repeat = effort.of(_REPEAT, 2000)
    counts = effort.of(_COUNTERS, (1, 100))
    where = _HOOKS[hook]
    made: dict[tuple[Method, int], Program] = {}
    for method in Method:
        for count in counts if method is not Method.NON_ADAPTIVE else (_MOST,):
            program = counters(effort.compiler, hook, method, count)
            stack.callback(program.close)
            made[method, count] = program
    whole = partial(ns_of, made[Method.NON_ADAPTIVE, _MOST].fd, repeat)
    for method in (Method.FULLY_ADAPTIVE, Method.ADAPTIVE):
        line = Line(f"S1 6a: a packet by counters, {where}", method.value, "counters")
        for count in counts:
            goal = at_most(1) if method is Method.FULLY_ADAPTIVE and count < _MOST else None
            yield Case(
                f"{count} counters, {method.value}, {where}", "ns",
                partial(ns_of, made[method, count].fd, repeat), whole, "non-adaptive",
                goal=goal, figure="S1 6a", paper=_PAPER_6, line=line, size=count,
            )  # fmt: skip
    if hook is Hook.XDP:
        line = Line("S1 6b: memory of the maps by counters", "fully-adaptive", "counters")
        most = made[Method.NON_ADAPTIVE, _MOST].memory() / 1e6
        for count in counts:
            yield Case(
                f"memory, {count} counters, fully-adaptive", "MB",
                constant(made[Method.FULLY_ADAPTIVE, count].memory() / 1e6), constant(most),
                "adaptive and non-adaptive", figure="S1 6b", paper="0.1 to 10 MB against 10 MB",
                line=line, size=count,
            )  # fmt: skip


class Netflow:
    """One method with a number of NetFlow's features, on a hook that sees test runs alone."""

    def __init__(
        self, compiler: Compiler, stack: ExitStack, hook: Hook, method: Method, count: int
    ) -> None:
        number = len(FEATURES) if method is Method.NON_ADAPTIVE else count
        netflow = {"features": number, "method": method.value}
        direction = {"interface": "lo", "hook": _HOOKS[hook], "netflow": netflow}
        probe = parse({"name": "netflow", "interval": 0, "ingress": direction}, "bench")
        hooks = Hooks(lambda point: None)
        with compile_probe(compiler, probe, hooks) as compiled:
            self._probe = ProgramProbe(compiler, compiled, hooks)
        stack.enter_context(closing(self._probe))
        self.fd = hooks.in_use()[0].chain.fd

    @property
    def memory(self) -> float:
        """Megabytes."""
        return sum(program.memory for program in self._probe.programs()) / 1e6


def figure_7(hook: Hook, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """NetFlow's features 1 to 15 by three methods."""
    repeat, where = effort.of(_REPEAT, 2000), _HOOKS[hook]
    floor = partial(ns_of, floors(stack)[hook], repeat)
    whole = Netflow(effort.compiler, stack, hook, Method.NON_ADAPTIVE, len(FEATURES))
    peer = partial(ns_of, whole.fd, repeat)
    for method in (Method.FULLY_ADAPTIVE, Method.ADAPTIVE):
        line = Line(f"S1 7a: a packet by NetFlow features, {where}", method.value, "features")
        for count in effort.of(_COUNTS, (1, 15)):
            loaded = Netflow(effort.compiler, stack, hook, method, count)
            goal = None
            if method is Method.FULLY_ADAPTIVE:
                goal = at_most(0.25 if (hook, count) == (Hook.XDP, 1) else 1.05)
            yield Case(
                f"NetFlow, {count} features, {method.value}, {where}", "ns",
                partial(ns_of, loaded.fd, repeat), peer, "non-adaptive", goal=goal,
                figure="S1 7a", paper=_PAPER_7, line=line, size=count,
            )  # fmt: skip
            if method is Method.FULLY_ADAPTIVE and hook is Hook.XDP:
                yield Case(
                    f"memory, NetFlow, {count} features, fully-adaptive", "MB",
                    constant(loaded.memory), constant(whole.memory), "non-adaptive",
                    figure="S1 7b", paper="16x smaller at 1 feature",
                    line=Line("S1 7b: memory by NetFlow features", "fully-adaptive", "features"),
                    size=count,
                )  # fmt: skip
    yield Case(f"NetFlow, the hook alone, {where}", "ns", floor)


def capture(path: Path, frames: int) -> None:
    """Write a capture of so many frames of 25,000 flows."""
    packet = bytearray(frame(4))
    with path.open("wb") as file:
        file.write(_PCAP.pack(0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number in range(frames):
            flow = (number * 2654435761 & 0xFFFFFFFF) * FLOWS >> 32
            packet[26:30] = (0x0A5F4000 + (flow >> 14)).to_bytes(4, "big")
            packet[34:36] = (1024 + (flow & 16383)).to_bytes(2, "big")
            seconds, rest = divmod(number, 1_000_000)
            file.write(struct.pack("<4I", 1_700_000_000 + seconds, rest, len(packet), len(packet)))
            file.write(packet)


def exporter(stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Packets a second of one core, beside an exporter in user space on the same traffic.

    The exporter reads a capture from memory, which spares it the kernel's work of a live packet.
    """
    program = next((each for each in ("softflowd", "pmacctd") if shutil.which(each)), "")
    if not program:
        raise MissingError("neither softflowd nor pmacct is installed")
    frames, repeat = effort.of(2_000_000, 5000), effort.of(_REPEAT, 2000)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    for name, count in (("one", 1), ("all", frames)):
        capture(folder / f"{name}.pcap", count)
    # Of its start it takes no share.
    start_s = effort.of(export, lambda *_: 0.0)(program, folder, "one")

    def theirs() -> float:
        return frames / max(export(program, folder, "all") - start_s, 0.001) / 1e6

    for hook, name in list(_HOOKS.items())[: effort.of(2, 1)]:
        loaded = Netflow(effort.compiler, stack, hook, Method.FULLY_ADAPTIVE, len(FEATURES))
        yield Case(
            f"NetFlow, 15 features, one core, {name}", "Mpps",
            lambda fd=loaded.fd: 1e3 / ns_of(fd, repeat), theirs, program,  # type: ignore[misc]
            goal=at_least(10), figure="S1 7a", paper=_PAPER_7,
        )  # fmt: skip


def export(program: str, folder: Path, name: str) -> float:
    """Return the CPU seconds of an exporter with a capture."""
    path = folder / f"{name}.pcap"
    if program == "softflowd":
        command = ["softflowd", "-r", str(path), "-n", "127.0.0.1:9", "-m", str(4 * FLOWS)]
    else:
        plugin = "nfprobe_receiver: 127.0.0.1:9\nplugins: nfprobe\npcap_savefile_wait: false\n"
        (folder / "conf").write_text(f"pcap_savefile: {path}\n{plugin}")
        command = ["pmacctd", "-f", str(folder / "conf")]
    before = os.times()
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    after = os.times()
    used = (each.children_user + each.children_system for each in (after, before))
    return next(used) - next(used)


GROUPS = (
    *(Group(f"figure 6, {name}", partial(figure_6, hook)) for hook, name in _HOOKS.items()),
    *(Group(f"figure 7, {name}", partial(figure_7, hook)) for hook, name in _HOOKS.items()),
    Group("figure 7, an exporter in user space", exporter, 5),
)
