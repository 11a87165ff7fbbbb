"""The benches, and how each runs in the shortest time that still reaches its end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bench:
    """A module of `bench` that is a program: `python -I -m bench.NAME`."""

    name: str
    quick: str | None
    """Arguments of its shortest run; None if none is short: a test imports it only."""
    needs: str = ""
    """A package of the tests without which it does not run."""


BENCHES = (
    Bench("actions", "--rate 2000 --seconds 1"),
    Bench("budget", None),
    Bench("captures", "--frames 1000 --windows 20"),
    Bench("compile", "--rounds 1"),
    Bench("console", None),
    Bench("control", None),
    Bench("deploy", "--rounds 2"),
    Bench("drain", "--entries 2000 --rounds 1"),
    Bench("editor", "--lines 50 --keys 2"),
    Bench("export", "--flows 200 --rounds 1"),
    Bench("features", "--rounds 1 --counts 2"),
    Bench("fleet", "--hosts 2 --seconds 2"),
    Bench("flow", "--frames 5000 --rounds 1"),
    Bench("fuzz", "--steps 20 --seed 1", "pytest"),
    Bench("interfaces", "--packets 2000 --rounds 1"),
    Bench("memory", None),
    Bench("monitor", None),
    Bench("owners", "--sockets 100 --flows 20 --windows 2"),
    Bench("path", None),
    Bench("peers", None),
    Bench("peers.beside", None),
    Bench("picture", None),
    Bench("policies", None),
    Bench("record", "--flows 50 --windows 5 --moments 2"),
    Bench("ring", "--rate 2000 --seconds 0.5 --rounds 1"),
    Bench("segment", "--rounds 1"),
    Bench("sketch", "--rounds 5", "datasketches"),
    Bench("sockets", None),
    Bench("sockets.limits", "--seconds 3 --only buffer"),
    Bench("start", None),
    Bench("undisturbed", None, "pytest"),
)
