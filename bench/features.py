"""NetFlow features 1 to 15 by three methods: time a packet and memory (figures 6 and 7).

    python -I -m bench.features [--rounds 9]

By BPF_PROG_TEST_RUN of an XDP program, interleaved, on frames of one flow: what differs is the
program alone. Non-adaptive always has all fifteen.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import ExitStack, closing

from bench.support.report import Report
from bpf.compiler import Compiler
from bpf.syscall import prog_test_run
from probes.config.model import parse
from probes.hooks import Hooks
from probes.netflow.generator import FEATURES, Method
from probes.program.loading import compile_probe
from probes.program.probe import ProgramProbe
from tests.support.generator import frame

_REPEAT = 500_000
_COUNTS = (1, 2, 4, 6, 8, 10, 12, 14, 15)


class Loaded:
    """One method at one number of features, on a hook that sees test runs alone."""

    def __init__(self, compiler: Compiler, stack: ExitStack, method: Method, count: int) -> None:
        number = len(FEATURES) if method is Method.NON_ADAPTIVE else count
        netflow = {"features": number, "method": method.value}
        direction = {"interface": "lo", "hook": "xdp", "netflow": netflow}
        probe = parse({"name": "netflow", "interval": 0, "ingress": direction}, "bench")
        hooks = Hooks(lambda point: None)
        with compile_probe(compiler, probe, hooks) as compiled:
            self._probe = ProgramProbe(compiler, compiled, hooks)
        stack.enter_context(closing(self._probe))
        self._fd = hooks.in_use()[0].chain.fd
        self.times: list[int] = []

    def run(self) -> None:
        self.times.append(prog_test_run(self._fd, frame(4), repeat=_REPEAT).duration_ns)

    @property
    def memory(self) -> int:
        return sum(program.memory for program in self._probe.programs())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--counts", type=int, nargs="+", default=_COUNTS, help="of features")
    options = parser.parse_args()
    report = Report("NetFlow features: fully adaptive, adaptive, non-adaptive")
    with Compiler() as compiler:
        for count in options.counts:
            with ExitStack() as stack:
                loaded = {method: Loaded(compiler, stack, method, count) for method in Method}
                for _ in range(options.rounds + 1):
                    for each in loaded.values():
                        each.run()
                ns = {m: statistics.median(each.times[1:]) for m, each in loaded.items()}
                memory = {m: each.memory / 1e6 for m, each in loaded.items()}
            measured = ", ".join(f"{ns[m]:.0f} ns {memory[m]:.1f} MB" for m in Method)
            ours = ns[Method.FULLY_ADAPTIVE]
            report.target(f"{count} features", measured, ours <= 1.05 * min(ns[m] for m in Method))
    report.end()


if __name__ == "__main__":
    main()
