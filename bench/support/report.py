"""How benches print: a line a measurement, with PASS or FAIL where it has a target."""

from __future__ import annotations

import sys


class Report:
    """Prints as it goes; `end` exits with 1 where a target was missed."""

    def __init__(self, title: str) -> None:
        self._missed = 0
        print(title)

    def row(self, name: str, measured: str) -> None:
        """A measurement to compare with."""
        print(f"       {name:<52}  {measured}", flush=True)

    def target(self, name: str, measured: str, met: bool) -> None:
        """A measurement that has to be good enough."""
        self._missed += not met
        print(f"  {'PASS' if met else 'FAIL'} {name:<52}  {measured}", flush=True)

    def end(self) -> None:
        sys.exit(1 if self._missed else 0)
