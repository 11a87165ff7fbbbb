"""The benches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Bench:
    """A module of `bench` with GROUPS of cases, or one that is a program and prints text."""

    name: str
    quick: str | None = None
    """Arguments of a program's shortest run; None if none is short."""
    needs: str = ""
    """A package of the tests without which it does not run."""
    by_name: bool = False
    """Whether it runs only if it is named."""

    @property
    def module(self) -> str:
        is_folder = (_FOLDER / self.name.replace(".", "/")).is_dir()
        return f"bench.{self.name}{'.__main__' if is_folder else ''}"

    @property
    def source(self) -> str:
        """Its module's text."""
        return (_FOLDER.parent / f"{self.module.replace('.', '/')}.py").read_text(encoding="utf-8")

    @property
    def has_cases(self) -> bool:
        return "\nGROUPS" in self.source


BENCHES = (
    Bench("flow"),
    Bench("monitor"),
    Bench("path"),
    Bench("drain"),
    Bench("sketch", needs="datasketches"),
    Bench("compile"),
    Bench("control"),
    Bench("features"),
    Bench("segment"),
    Bench("ring"),
    Bench("console"),
    Bench("actions"),
    Bench("budget"),
    Bench("captures"),
    Bench("deploy", "--rounds 2"),
    Bench("editor"),
    Bench("export"),
    Bench("fleet"),
    Bench("fuzz", "--steps 20 --seed 1", "pytest", by_name=True),
    Bench("interfaces"),
    Bench("memory", "--real"),
    Bench("owners"),
    Bench("peers"),
    Bench("peers.beside"),
    Bench("picture", by_name=True),
    Bench("policies"),
    Bench("record"),
    Bench("sockets"),
    Bench("sockets.limits", "--seconds 3 --only buffer"),
    Bench("start"),
    Bench("undisturbed", needs="pytest"),
)
