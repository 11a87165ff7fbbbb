"""The cost of policies on this machine."""

from __future__ import annotations

from collections.abc import Iterable

from app.run.monitor import policies_of
from bpf.requirements import HostCheck, ok
from probes.monitor.options import MonitorOptions


def cost_of(path: str) -> Iterable[HostCheck]:
    """Measure each policy of a file. Raises UsageError for its mistakes."""
    found, said = policies_of(path, (), ())

    def checks() -> Iterable[HostCheck]:
        from app.lab.policy_cost import cost_texts

        for name, text in cost_texts(found.policies, MonitorOptions(**said)).items():
            yield ok(name, text)

    return checks()
