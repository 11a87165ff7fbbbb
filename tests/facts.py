"""Results of tests/probes/test_every_kernel.py on each kernel, and their tables in docs/kernels.md.

As a plugin of pytest, on the kernel: each case becomes a line of the file that FACTS names. As a
program, `python -m tests.facts`: takes such lines from a console's output on standard input
into docs/kernels.json, and makes the tables of the document anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "kernels.json"
DOCUMENT = ROOT / "docs" / "kernels.md"
BEGIN, END = "<!-- made by tests/facts.py -->\n", "<!-- end -->"
_MARK = "fact "
_LOCKED = re.compile(r"lockdown=\w+")
_DOCTOR = "test_the_doctor_names_missing_features"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        said: dict[str, Any] = dict(report.user_properties)
        if isinstance(report.longrepr, tuple):  # of a skipped test
            said["skipped"] = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed and report.longrepr is not None:
            said["failed"] = report.longreprtext.splitlines()[-3:]
        fact = {
            "release": os.uname().release,
            "machine": os.uname().machine,
            "locked": _LOCKED.findall(Path("/proc/cmdline").read_text()),
            "case": report.nodeid.partition("::")[2],
            "outcome": report.outcome,
            "said": said,
        }
        with open(os.environ["FACTS"], "a") as file:
            file.write(f"\n{_MARK}{json.dumps(fact)}\n")


def merged(results: dict[str, Any], lines: list[str], when: dict[str, str]) -> dict[str, Any]:
    """Return the results after the lines: their kernels lose older results."""
    found: dict[str, Any] = {}
    for line in lines:
        if line.startswith(_MARK):
            fact = json.loads(line.removeprefix(_MARK))
            name = " ".join([fact["release"], *fact["locked"]])
            run = found.setdefault(name, {**when, "machine": fact["machine"], "cases": {}})
            run["cases"][fact["case"]] = {"outcome": fact["outcome"], "said": fact["said"]}
    return dict(sorted({**results, **found}.items()))


def tables(results: dict[str, Any]) -> str:
    """Return the tables of the document."""
    lines = [
        "| Linux | machine | passed | refused, skipped or failed | commit | date |",
        "|---|---|---|---|---|---|",
    ]
    for name, run in results.items():
        told = [case for case in run["cases"].values() if _not_run(case)]
        passed = f"{len(run['cases']) - len(told)} of {len(run['cases'])}"
        cells = name, run["machine"], passed, str(len(told)), run["commit"], run["date"]
        lines.append(f"| {' | '.join(cells)} |")
    cases = sorted({case for run in results.values() for case in run["cases"]} - {_DOCTOR})
    said: dict[str, list[str]] = {}
    for name, run in results.items():
        for case in cases:
            result = run["cases"].get(case)
            if result and (why := _not_run(result)):
                said.setdefault(f"| {_words(case)} | {why} |", []).append(name)
        for check, why in run["cases"].get(_DOCTOR, {"said": {}})["said"].items():
            said.setdefault(f"| `doctor`: {check} | {why} |", []).append(name)
    lines += ["", "| case | line | Linux |", "|---|---|---|"]
    lines += [f"{line} {', '.join(names)} |" for line, names in said.items()]
    names = sorted({_words(case.partition("[")[0]) for case in cases})
    lines += ["", "The cases:", "", *(f"- {name}" for name in names)]
    return "\n".join(lines) + "\n"


def _words(case: str) -> str:
    return case.removeprefix("test_").replace("_", " ")


def _not_run(case: dict[str, Any]) -> str:
    said: dict[str, str] = case["said"]
    if case["outcome"] == "failed":
        return "failed"
    return said.get("refused", "") or said.get("skipped", "")


def document(text: str, results: dict[str, Any]) -> str:
    """Return the document's text with the tables of the results."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + tables(results) + END + rest.partition(END)[2]


def main() -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    when = {"commit": commit, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results = merged(results, sys.stdin.read().splitlines(), when)
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    DOCUMENT.write_text(document(DOCUMENT.read_text(), results))


if __name__ == "__main__":
    main()
