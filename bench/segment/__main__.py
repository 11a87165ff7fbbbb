"""The segment probe: cost of a packet that is not chosen, of a chosen one, and of large segments.

Frames run through the program; the bench sends nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

from bench.runner.cases import Case, Effort, Group
from bpf.attach.attachment import Hook
from bpf.compiler import Compiled
from bpf.programs.program import Program
from bpf.programs.trial import floor_ns
from bpf.syscall import prog_test_run
from probes.path.marks import PROBE_MAGIC
from probes.segment.options import SegmentOptions
from probes.segment.probe import SOURCE
from tests.probes.names.tools import tcp, udp
from tests.probes.running import sk_buff

_HOOK = Hook.TC_EGRESS
_REPEAT = 60_000
"""Fewer than a table has entries: a chosen packet has room."""
_DATA = random.Random(1).randbytes(1300)
_ENDS = "192.0.2.1", "198.51.100.7"
_FRAMES = {
    "TCP": (tcp(*_ENDS, _DATA), b"", 1),
    "TCP by IPv6": (tcp("2001:db8::1", "2001:db8::7", _DATA), b"", 1),
    "UDP": (udp(*_ENDS, (1000, 2000), _DATA), b"", 1),
    "a packet of a large segment of 44": (tcp(*_ENDS, _DATA), sk_buff(segment_size=30), 44),
}


def costs(ratio: int, stack: ExitStack, effort: Effort) -> Iterator[Case]:
    """Yield each kind of packet with the ns that the probe takes for one, beyond the hook."""
    options = SegmentOptions("bench", ratio)
    words = "chosen" if ratio == 1 else "not chosen"
    for name, (frame, context, packets) in _FRAMES.items():
        macros = {_HOOK.macro: 1, "LINK_ETHERNET": 1, "MAGIC": PROBE_MAGIC, **options.macros}
        flags = [f"-D{name}={value}" for name, value in macros.items()]
        source = SOURCE.read_text(encoding="utf-8")
        headers = {"capture.h": options.filter.to_c()}
        compiled = stack.enter_context(
            effort.compiler.compile(
                source, _HOOK.prog_type, name="segment.c", headers=headers, cflags=flags
            )
        )
        repeat = effort.of(_REPEAT, 2000) // packets

        def run(
            compiled: Compiled = compiled, repeat: int = repeat, packets: int = packets,
            frame: bytes = frame, context: bytes = context,
        ) -> float:  # fmt: skip
            with closing(Program(compiled, "segment")) as program:
                done = prog_test_run(program.fd, frame, repeat=repeat, context=context)
            return (done.duration_ns - floor_ns(_HOOK.prog_type)) / packets

        yield Case(f"segment probe, {name}, {words}", "ns", run)


GROUPS = (Group("not chosen", partial(costs, 65536)), Group("chosen", partial(costs, 1)))
