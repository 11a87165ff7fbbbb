"""Each bench is in the table and runs to its end; numbers of documents are in the results."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from app.cli.main import cli
from bench.runner import page
from bench.runner.cases import (
    Case,
    Effort,
    Goal,
    Group,
    Line,
    MissingError,
    at_least,
    at_most,
    exactly,
)
from bench.runner.charts import svg, terminal
from bench.runner.checkout import git, same_benches
from bench.runner.command import chosen, listed
from bench.runner.machine import facts
from bench.runner.results import BenchRun, Measured, Result, charts, curves, growth
from bench.runner.running import Plan, Runner
from bench.runner.statistic import exponent, interval
from bench.runner.worker import Remote, Worker
from bench.support.table import BENCHES, Bench
from bpf.errors import ProbedeckError, UsageError

ROOT = Path(__file__).resolve().parents[1]
_BEGIN = re.compile(r'^if __name__ == "__main__":|^GROUPS = ', re.MULTILINE)
_QUANTITY = re.compile(r"(?<![\w.:/-])(\d[\d,]*(?:\.\d+)?) (ns|us|ms|Mpps|MB|times)\b")


def test_the_table_has_every_bench() -> None:
    programs = {
        ".".join(path.relative_to(ROOT / "bench").with_suffix("").parts).removesuffix(".__main__")
        for path in (ROOT / "bench").rglob("*.py")
        if path.parent.name not in ("support", "runner") and _BEGIN.search(path.read_text())
    }
    assert programs == {bench.name for bench in BENCHES}
    assert len(list(listed())) == len(BENCHES)


@pytest.mark.parametrize("bench", BENCHES, ids=lambda each: each.name)
def test_it_finds_what_it_imports(bench: Bench) -> None:
    if bench.needs and find_spec(bench.needs) is None:
        pytest.skip(f"{bench.needs} is not there")
    module = import_module(bench.module)
    assert hasattr(module, "GROUPS" if bench.has_cases else "main")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(Plan(quick=True)) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize(
    "bench",
    [each for each in BENCHES if each.has_cases or each.quick is not None],
    ids=lambda each: each.name,
)
def test_it_runs_to_its_end(runner: Runner, bench: Bench) -> None:
    """A missed goal says nothing on a busy machine."""
    if bench.needs and find_spec(bench.needs) is None:
        pytest.skip(f"{bench.needs} is not there")
    run = runner.run(bench)
    assert run.failures == []
    assert run.results or run.text
    names = [each.name for each in run.results]
    assert len(names) == len(set(names))


def test_without_a_checkout_one_line_tells_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bench.runner.command", None)
    with pytest.raises(UsageError, match="no part of an installed package") as refused:
        cli.main(["bench", "flow"], standalone_mode=False)
    assert "clone the repository" in refused.value.hint


def test_an_unknown_bench_is_refused() -> None:
    with pytest.raises(UsageError, match="no bench 'flows'"):
        chosen(["flows"])


def test_the_interval_of_a_median_is_that_of_tables_of_order_statistics() -> None:
    """The ranks of textbooks for 95 %: 10 values 2 to 9, 20 values 6 to 15."""
    assert interval(range(1, 11)) == (2, 9)
    assert interval(range(1, 21)) == (6, 15)
    assert interval([3, 1, 2]) == (1, 3)
    assert interval([5]) == (5, 5)


def test_an_exponent_is_that_of_the_law() -> None:
    sizes = [1, 10, 100, 1000]
    assert exponent(sizes, [7] * 4) == pytest.approx(0)
    assert exponent(sizes, [3 * n**0.5 for n in sizes]) == pytest.approx(0.5)
    assert exponent(sizes, [n**-1 for n in sizes]) == pytest.approx(-1)
    assert exponent([1, 10], [0, 5]) is None


@pytest.mark.parametrize(
    ("goal", "met"), [(at_most(0.5), True), (at_most(0.4), False), (at_least(1), False)]
)
def test_a_goal_is_of_the_ratio_of_rounds(goal: Goal, met: bool) -> None:
    """The ratio of the medians would be another: the machine was twice as slow in a round."""
    case = Case("c", "ns", float, float, "peer", goal=goal)
    result = Measured(case, [1.0, 10.0, 3.0], [2.0, 20.0, 2.0]).result()
    assert (result.ratio, result.met, result.interval) == (0.5, met, (0.5, 1.5))


def test_without_a_peer_a_goal_is_of_ours() -> None:
    result = Measured(Case("c", "packets", float, goal=exactly(0)), [0.0], []).result()
    assert (result.met, result.ratio, result.goal) == (True, None, "0")


def test_growth_that_should_be_flat_misses_its_goal() -> None:
    flat = Line("chart", "line", "flows", at_most(0.1))
    sizes = (1, 100, 10_000)
    for power, met in ((0.0, True), (0.5, False)):
        cases = [
            Measured(Case(str(n), "ns", float, line=flat, size=n), [float(n**power)], [])
            for n in sizes
        ]
        (result,) = growth(cases)
        assert result.met == met
        assert result.ours == pytest.approx(power)
        assert result.name == "growth: chart, line, 1 to 10,000 flows"


class Steps:
    """Measurements that note their order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def make(self, stack: ExitStack, effort: Effort) -> Iterator[Case]:
        def step(name: str, value: float) -> float:
            self.seen.append(name)
            return value

        floor, peer = (lambda: step("floor", 1)), (lambda: step("peer", 5))
        stack.callback(self.seen.append, "closed")
        for name in ("a", "b"):
            yield Case(name, "ns", lambda name=name: step(name, 3), peer, "peer", floor)  # type: ignore[misc]
        raise MissingError("no third peer")


def test_a_round_measures_each_once_above_the_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps()
    with Worker(quick=True) as worker:
        monkeypatch.setattr(worker, "groups", lambda _: [Group("g", steps.make)])
        assert [case.name for case in worker.open("m", 0)] == ["a", "b"]
        assert worker.lacks == "no third peer"
        assert worker.round(backwards=False) == {"a": (2, 4), "b": (2, 4)}
        assert worker.round(backwards=True, peers=False) == {"a": (2, None), "b": (2, None)}
    assert steps.seen == ["floor", "peer", "a", "b", "b", "a", "floor", "closed"]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no checkout")
def test_the_other_commit_is_gone_after_an_interruption() -> None:
    def interrupted() -> None:
        with same_benches("HEAD") as tree:
            trees.append(tree)
            assert (tree / "bench" / "runner" / "cases.py").is_file()
            raise KeyboardInterrupt

    trees: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not trees[0].exists()
    assert str(trees[0]) not in git("worktree", "list")
    with pytest.raises(UsageError, match="no commit 'none-such'"), same_benches("none-such"):
        pass


@pytest.mark.slow
def test_another_checkout_measures_the_same_cases(tmp_path: Path) -> None:
    for name in ("app", "bench", "bpf", "probes", "tests", "widgets"):
        (tmp_path / name).symlink_to(ROOT / name)
    with Remote(tmp_path, quick=True) as other:
        other.open("bench.segment.__main__", 0)
        assert len(other.round(backwards=True)) == 4
        with pytest.raises(ProbedeckError, match="No module named 'bench"):
            other.open("bench.no", 0)


def run_of(folder: Path) -> BenchRun:
    line = Line("S9 1: cost by flows", "flow table", "flows")
    results = [
        Measured(Case(f"{n} flows", "ns", float, float, "hash", line=line, size=n, figure="S9 1",
                  paper="a paper's"), [float(n)], [2.0 * n]).result()
        for n in (1, 1000)
    ]  # fmt: skip
    run = BenchRun("toy", facts(), "abc", "2026-01-01T00:00:00+00:00", False, results=results)
    run.write(folder)
    return run


def test_results_come_back_and_become_a_page_with_pictures(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (again,) = page.read_all(tmp_path)
    assert json.dumps(again.machine) == json.dumps(run.machine)
    assert [str(each) for each in again.results] == [str(each) for each in run.results]
    text = page.write(tmp_path).read_text()
    assert "| S9 1 | 1,000 flows |" in text or "| S9 1 | 1000 flows |" in text
    picture = tmp_path / "toy-s9-1-cost-by-flows.svg"
    assert picture.name in text
    assert ET.fromstring(picture.read_text()).tag.endswith("svg")


def test_a_chart_has_both_lines(tmp_path: Path) -> None:
    ((title, lines),) = charts(run_of(tmp_path).results).items()
    found = curves(lines)
    assert found == {"flow table": [(1, 1), (1000, 1000)], "hash": [(1, 2), (1000, 2000)]}
    assert "hash" in svg(title, "flows", "ns", found)
    assert title in terminal(title, "flows", "ns", found)


def test_the_page_has_what_the_results_say() -> None:
    runs = page.read_all(page.RESULTS)
    assert page.PAGE.exists() == bool(runs)
    if runs:
        assert page.PAGE.read_text() == page.page(runs, "results")


def test_numbers_of_the_readme_are_in_the_results() -> None:
    """A number is there if it equals a result that is rounded to its digits."""
    text = (ROOT / "README.md").read_text()
    stated = _QUANTITY.findall(re.sub(r"^    .*\n|`[^`]+`", "", text, flags=re.MULTILINE))
    results = [each for run in page.read_all(page.RESULTS) for each in run.results]
    assert [each for each in stated if not _is_in(each, results)] == []


def _is_in(stated: tuple[str, str], results: list[Result]) -> bool:
    digits, unit = stated[0].replace(",", ""), stated[1]
    decimals = len(digits.partition(".")[2])
    values = [each.ratio for each in results] if unit == "times" else [
        value for each in results if each.unit == unit for value in (each.ours, each.peer)
    ]  # fmt: skip
    return any(value is not None and f"{value:.{decimals}f}" == digits for value in values)
