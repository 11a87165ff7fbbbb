"""A plugin of pytest that keeps the CPUs of a virtual machine awake.

A sleeping virtual CPU wakes up milliseconds late at times. Packets and timers of a test are then
late, too. So each CPU gets a process that never sleeps. Every other process goes before it
(sched(7), SCHED_IDLE).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SPIN = f"""
import os
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while os.getppid() == {os.getpid()}:
    sum(range(10_000_000))
"""


def pytest_configure(config: pytest.Config) -> None:
    # More tests than CPUs leave the CPUs hardly any sleep.
    cpus = os.sched_getaffinity(0)
    few = (config.getoption("numprocesses", None) or 1) <= len(cpus)
    is_worker = hasattr(config, "workerinput")
    if few and not is_worker and " hypervisor" in Path("/proc/cpuinfo").read_text():
        for _ in cpus:
            config.add_cleanup(subprocess.Popen([sys.executable, "-I", "-c", _SPIN]).kill)
