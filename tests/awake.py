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
    # Beside each other, tests leave the CPUs hardly any sleep.
    alone = not config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if alone and " hypervisor" in Path("/proc/cpuinfo").read_text():
        for _ in os.sched_getaffinity(0):
            config.add_cleanup(subprocess.Popen([sys.executable, "-I", "-c", _SPIN]).kill)
