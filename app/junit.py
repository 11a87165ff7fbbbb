"""Outcomes as JUnit XML, which systems for continuous integration read."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from app.files import write_atomic
from bpf.errors import ProbedeckError, printable


class Case(NamedTuple):
    name: str
    failure: str = ""
    """The reason; empty: it did not fail."""
    skipped: bool = False


class Suite(NamedTuple):
    name: str
    cases: Sequence[Case]
    seconds: float
    log: str = ""


def write(path: str, suites: Iterable[Suite]) -> None:
    """Write suites to a file. Raises ProbedeckError."""
    root = ET.Element("testsuites")
    for suite in suites:
        counts = {
            "tests": len(suite.cases), "failures": sum(bool(each.failure) for each in suite.cases),
            "errors": 0, "skipped": sum(each.skipped for each in suite.cases),
        }  # fmt: skip
        name, numbers = printable(suite.name), {key: str(value) for key, value in counts.items()}
        made = ET.SubElement(root, "testsuite", numbers, name=name, time=f"{suite.seconds:.3f}")
        for each in suite.cases:
            case = ET.SubElement(made, "testcase", classname=name, name=printable(each.name))
            if each.failure:
                ET.SubElement(case, "failure", message=printable(each.failure))
            elif each.skipped:
                ET.SubElement(case, "skipped")
        if suite.log:
            log = ET.SubElement(made, "system-out")
            log.text = "\n".join(map(printable, suite.log.split("\n")))
    ET.indent(root)
    try:
        write_atomic(Path(path), ET.tostringlist(root, encoding="utf-8", xml_declaration=True))
    except OSError as error:
        raise ProbedeckError(f"{path} is not written: {error.strerror}") from None
