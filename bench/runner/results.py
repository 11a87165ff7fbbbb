"""Results of a bench, and the file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.runner.cases import Case, Line
from bench.runner.statistic import exponent, interval, middle, ratios


@dataclass(frozen=True, slots=True)
class Result:
    """A case with its medians; or a line of cases with its exponent."""

    name: str
    ours: float | None
    peer: float | None
    unit: str
    ratio: float | None = None
    """The median of the rounds' ratios."""
    goal: str = ""
    met: bool | None = None
    """None without a goal, or without a number."""
    interval: tuple[float, float] | None = None
    """95 % of the ratio; without a ratio, of ours."""
    rounds: int = 1
    against: str = ""
    figure: str = ""
    paper: str = ""
    chart: str = ""
    line: str = ""
    x: str = ""
    size: float = 0
    fit: bool = True
    """False of a point of a curve that has no exponent: it is drawn only."""

    @property
    def told(self) -> bool:
        """Whether it stands in tables, too."""
        return self.fit or bool(self.figure)

    def __str__(self) -> str:
        words = [f"{self.name}: {number(self.ours)} {self.unit}".rstrip()]
        if self.peer is not None:
            words.append(f"{self.against} {number(self.peer)}")
        if self.ratio is not None:
            words.append(f"ratio {number(self.ratio)}")
        if self.interval and self.rounds > 1:
            words[-1] += f" ({number(self.interval[0])} to {number(self.interval[1])})"
        if self.goal:
            verdict = {True: "", False: ": MISSED", None: ": unknown"}[self.met]
            words.append(f"{self.goal}{verdict}")
        if self.paper:
            words.append(f"{self.figure}, the paper: {self.paper}")
        return ", ".join(words)


def number(value: float | None) -> str:
    """Return a number with four digits; whole numbers whole."""
    if value is None:
        return "-"
    if value == round(value) or abs(value) >= 10_000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


@dataclass(slots=True)
class Measured:
    """Rounds of a case."""

    case: Case
    ours: list[float] = field(default_factory=list)
    peers: list[float] = field(default_factory=list)

    def result(self, against: str = "") -> Result:
        """`against`: a commit that is the peer, so that no goal is judged."""
        case = self.case
        shares = ratios(self.ours, self.peers) if self.peers else []
        judged = shares if self.peers else self.ours
        value, goal = middle(judged), case.goal if not against else None
        on_line = case.line or Line("", "", "")
        return Result(
            case.name, middle(self.ours), middle(self.peers), case.unit, middle(shares),
            f"{'ratio ' if self.peers else ''}{goal}" if goal else "",
            goal.met(value) if goal and value is not None else None,
            interval(judged) if judged else None, len(self.ours), against or case.against,
            case.figure, case.paper, on_line.chart, on_line.name, on_line.x, case.size, on_line.fit,
        )  # fmt: skip


def growth(measured: Iterable[Measured]) -> Iterator[Result]:
    """Yield the exponent of each line that has several sizes."""
    lines: dict[Line, list[Measured]] = {}
    for each in measured:
        if each.case.line and each.case.line.fit:
            lines.setdefault(each.case.line, []).append(each)
    for line, cases in lines.items():
        sizes = [each.case.size for each in cases]
        rounds = zip(*(each.ours for each in cases), strict=True)
        found = [k for values in rounds if (k := exponent(sizes, values)) is not None]
        if found:
            yield _exponent(line, sizes, found)


def _exponent(line: Line, sizes: Sequence[float], found: Sequence[float]) -> Result:
    value, goal = middle(found), line.goal
    span = f"{number(min(sizes))} to {number(max(sizes))} {line.x}"
    name = f"growth: {line.chart}, {line.name}, {span}"
    return Result(
        name, value, None, "exponent", None, str(goal or ""),
        goal.met(value) if goal and value is not None else None, interval(found), len(found),
        chart=line.chart, x=line.x,
    )  # fmt: skip


@dataclass(slots=True)
class BenchRun:
    """All of one bench."""

    bench: str
    machine: dict[str, object]
    commit: str
    date: str
    """UTC, ISO 8601."""
    quick: bool
    noise: str = ""
    """Disturbances; empty on a quiet machine."""
    results: list[Result] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Groups that this machine cannot measure, with reasons."""
    failures: list[str] = field(default_factory=list)
    """Groups that did not reach their end."""
    text: str = ""
    """Of a bench that has no cases yet."""

    def write(self, folder: Path, against: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{self.bench}.against.json" if against else f"{self.bench}.json"
        text = json.dumps(asdict(self), indent=1) + "\n"
        (folder / name).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> BenchRun:
        fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        fields["results"] = [Result(**each) for each in fields["results"]]
        return cls(**fields)


def charts(results: Iterable[Result]) -> dict[str, dict[str, list[Result]]]:
    """Return the results of each chart by its lines."""
    found: dict[str, dict[str, list[Result]]] = {}
    for each in results:
        if each.line:
            found.setdefault(each.chart, {}).setdefault(each.line, []).append(each)
    return {chart: lines for chart, lines in found.items() if max(map(len, lines.values())) > 1}


def points(results: Sequence[Result], *, peers: bool = False) -> list[tuple[float, float]]:
    """Return size and value of each, by size; `peers`: the peer's value."""
    values = ((each.size, each.peer if peers else each.ours) for each in results)
    return sorted((x, y) for x, y in values if y is not None)


def curves(lines: dict[str, list[Result]]) -> dict[str, list[tuple[float, float]]]:
    """Return the points of ours and of the peers, by the name in the legend."""
    found = {name: points(results) for name, results in lines.items()}
    for results in lines.values():
        if against := results[0].against:
            found.setdefault(against, points(results, peers=True))
    return {name: curve for name, curve in found.items() if curve}
