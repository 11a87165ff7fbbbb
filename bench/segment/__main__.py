"""The segment probe: cost of a packet that is not chosen, of a chosen one, and of large segments.

    python -I -m bench.segment [--rounds 9]

Needs root; runs frames through the program, and sends nothing.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Iterator
from contextlib import closing

from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
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


def costs(compiler: Compiler, ratio: int, rounds: int) -> Iterator[tuple[str, float]]:
    """Yield each kind of packet with the ns that the probe takes for one."""
    options = SegmentOptions("bench", ratio)
    for name, (frame, context, packets) in _FRAMES.items():
        macros = {_HOOK.macro: 1, "LINK_ETHERNET": 1, "MAGIC": PROBE_MAGIC, **options.macros}
        flags = [f"-D{name}={value}" for name, value in macros.items()]
        source = SOURCE.read_text(encoding="utf-8")
        headers = {"capture.h": options.capture.to_c()}
        with compiler.compile(
            source, _HOOK.prog_type, name="segment.c", headers=headers, cflags=flags
        ) as compiled:
            found = []
            for _ in range(rounds):
                with closing(Program(compiled, "segment")) as program:
                    repeat = _REPEAT // packets
                    run = prog_test_run(program.fd, frame, repeat=repeat, context=context)
                    found.append(run.duration_ns - floor_ns(_HOOK.prog_type))
        yield name, statistics.median(found) / packets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with Compiler() as compiler:
        chosen = dict(costs(compiler, 1, rounds))
        others = dict(costs(compiler, 65536, rounds))
    print(f"{'packet':36}{'not chosen':>12}{'chosen':>10}  ns")
    for name, ns in others.items():
        print(f"{name:36}{ns:12.0f}{chosen[name]:10.0f}")


if __name__ == "__main__":
    main()
