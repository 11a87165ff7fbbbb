"""The page of IPFIX has each element, each option and each number."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from app.exporters.ipfix.options import IpfixOptions
from app.exporters.ipfix.templates import ELEMENTS, VARIABLE
from app.exporters.options import ExporterOptions
from probes.sockets.records import Limit, Reason

PAGE = (Path(__file__).parents[4] / "docs/ipfix.md").read_text()


def test_the_tables_have_each_element_once() -> None:
    written = re.findall(r"^\| `(\w+)` \| ([\d.]+) \| (\w+) \| (.+) \|$", PAGE, re.M)
    expected = [
        (
            each.name, f"{each.enterprise}.{each.number}".removeprefix("0."),
            "text" if each.length == VARIABLE else str(each.length), each.about,
        )
        for each in ELEMENTS.values()
    ]  # fmt: skip
    assert sorted(written) == sorted(expected)


def test_each_option_is_explained() -> None:
    own = {each.name for each in dataclasses.fields(IpfixOptions)}
    own -= {each.name for each in dataclasses.fields(ExporterOptions)}
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ", PAGE.split("## What")[0], re.M)
    assert {name for row in rows for name in re.findall(r"\w+", row)} == own


def test_numbers_of_limits_and_reasons_are_listed() -> None:
    text = " ".join(PAGE.split())
    limits = ", ".join(f"{int(limit)} {limit.label}" for limit in Limit if limit)
    reasons = ", ".join(f"{int(reason)} {reason.label}" for reason in Reason)
    assert f"Limits: {limits}. Reasons: {reasons}." in text
