"""Fuzz the console under a terminal, as a test does, with any number of steps:

python -I -m bench.fuzz [--steps 10000] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import time

from tests.support.console.fuzz import fuzz


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--steps", type=int, default=10_000)
    options.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    given = options.parse_args()
    print(f"{given.steps} steps, --seed {given.seed}", flush=True)
    started = time.perf_counter()
    fuzz(given.steps, given.seed)
    print(f"PASS in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
