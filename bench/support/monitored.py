"""The monitor on a hook of a bench, with applications and policies."""

from __future__ import annotations

from contextlib import ExitStack, closing

from bench.flow import Bench
from bpf.attach.attachment import Hook
from bpf.compiler import Compiler
from probes.config.model import parse
from probes.monitor.applications import catalog
from probes.monitor.applications.application import ApplicationProbe
from probes.monitor.options import MonitorOptions
from probes.monitor.policy import Policy
from probes.monitor.probe import MonitorProbe
from probes.program.loading import compile_probe

_COUNTING = """
#include "application.h"

BPF_PERCPU_ARRAY(totals, u64, 1);

APPLICATION(counting) {
    u32 zero = 0;
    u64 *total = totals.lookup(&zero);
    if (total)
        *total += packet->packets;
}
"""


class Monitored:
    """The monitor on a bench's hook, with policies that a test sets."""

    def __init__(self, compiler: Compiler, bench: Bench, stack: ExitStack, bits: int = 12) -> None:
        self._compiler, self._bench, self._stack = compiler, bench, stack
        options = MonitorOptions(bits=bits, ingress=Hook.XDP)
        self.probe = MonitorProbe(compiler, bench.interface, bench.hooks, options)
        stack.callback(self.probe.close)

    def count(self, number: int) -> list[str]:
        """So many applications that only count, loaded and in no policy."""
        names = [f"count{n}" for n in range(number)]
        for name in names:
            metric = {"name": "totals", "map": "totals", "agg": "sum"}
            direction = {"interface": self._bench.interface.name, "hook": "monitor",
                         "source": _COUNTING, "metrics": [metric]}  # fmt: skip
            self._load(parse({"name": name, "interval": 0, "ingress": direction}, "bench"))
        return names

    def built_in(self, name: str) -> None:
        self._load(catalog.built_in(name, self._bench.interface.name))

    def policy(self, text: str) -> None:
        policy = Policy.parse_short(text)
        self.probe.set_policy(policy, policy.run)

    def _load(self, config: object) -> None:
        with (
            self._bench.inside(),
            closing(
                compile_probe(self._compiler, config, self._bench.hooks)  # type: ignore[arg-type]
            ) as compiled,
        ):
            probe = ApplicationProbe(self._compiler, compiled, self._bench.hooks)
        self._stack.callback(probe.close)
