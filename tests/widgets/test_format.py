"""Formats of numbers and strings."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import pytest

from bpf.errors import printable
from bpf.quantities import bit_rate, byte_size, duration, percent, si
from widgets.table.columns import cell


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (0.004, "0.004"),
        (0.5, "0.50"),
        (5, "5"),
        (5.25, "5.25"),
        (9.996, "10.0"),
        (99.96, "100"),
        (999, "999"),
        (999.4, "999"),
        (999.5, "1.00 k"),
        (1000, "1.00 k"),
        (12_345, "12.3 k"),
        (999_499, "999 k"),
        (999_500, "1.00 M"),
        (1_234_567, "1.23 M"),
        (1e15, "1.00 P"),
        (1e18, "1.00 E"),
        (1e21, "1000 E"),
        (-1500, "-1.50 k"),
        (math.nan, "-"),
        (math.inf, "-"),
        (-math.inf, "-"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(value: float, text: str) -> None:
    assert si(value) == text


def test_units_follow_the_prefix() -> None:
    assert si(0, "packets") == "0 packets"
    assert bit_rate(1_234_567) == "1.23 Mbit/s"
    assert bit_rate(12) == "12 bit/s"
    assert bit_rate(math.nan) == "-"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (1 << 20, "1.00 MiB"),
        (10**15, "909 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_bytes_have_binary_prefixes(count: int, text: str) -> None:
    assert byte_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (850e-9, "850 ns"),
        (999.6e-9, "1.00 us"),
        (12.34e-6, "12.3 us"),
        (3.21e-3, "3.21 ms"),
        (0.9996, "1.0 s"),
        (3.2, "3.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1m00s"),
        (252, "4m12s"),
        (3599.6, "1h00m"),
        (3780, "1h03m"),
        (86_399, "23h59m"),
        (86_400, "1d00h"),
        (187_200, "2d04h"),
        (-3.2, "-3.2 s"),
        (math.nan, "-"),
        (math.inf, "-"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_no_number_is_wider_than_a_column() -> None:
    values = [m * 10.0**e for e in range(-3, 18) for m in (1, 1.005, 4.99, 9.995, 9.9999)]
    assert max(len(si(v)) for v in values) <= 6
    assert max(len(byte_size(v)) for v in values) <= 8
    assert max(len(duration(v)) for v in values if v < 1e7) <= 7


def test_percent_is_never_rounded_to_none_or_all() -> None:
    assert percent(0) == "0 %"
    assert percent(0.0001) == "<0.1 %"
    assert percent(0.125) == "12.5 %"
    assert percent(0.99999) == ">99.9 %"
    assert percent(1) == "100 %"
    assert percent(math.nan) == "-"


def test_nothing_that_steers_a_terminal_gets_through() -> None:
    assert printable("\x1b[31mred\x1b[0m\x07") == "?[31mred?[0m?"
    assert printable("a\u202eb\u2066c\u200f") == "a?b?c?"
    assert printable("a\x9bb\x00c\nd\te", "·") == "a·b·c·d·e"
    assert printable("comm\udcff") == "comm?"
    assert printable("größe 漢字 [/b]") == "größe 漢字 [/b]"


@pytest.mark.parametrize("width", range(1, 12))
def test_a_narrow_number_loses_digits_and_never_its_unit(width: int) -> None:
    forms: list[Callable[[float], str]] = [si, bit_rate, byte_size, duration, percent]
    values = [0.004, 0.4, 1.81, 12.34, 999, 1810, 27_200, 999_499, 1.81e6, 5.5e9, 0.033]
    for value, form in itertools.product(values, forms):
        whole = form(value)
        told = cell(whole, width, "right").strip()
        if len(whole) <= width:
            assert told == whole
        elif told != "…":
            parts = [
                re.fullmatch(r"[<>]?([\d.]+) ?([a-zA-Z/%]*)(\d\d.)?", t) for t in (told, whole)
            ]
            (number, unit), (exact, of) = (part.groups()[:2] for part in parts if part)
            assert unit == of
            assert told.startswith("<1") or abs(float(number) - float(exact)) <= 0.5


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("1.81 k", [".....", "…", "2k", "2 k", "2 k", "1.8 k"]),
        ("≥2.72 M", ["", "…", "…", "≥3M", "≥3 M", "≥3 M", "≥2.7 M"]),
        ("4m12s", ["", "…", "4m", "4m", "4m"]),
        ("1234567", ["", "…", "…", "…", "…", "…", "…"]),
        ("0.4 %", ["", "…", "…", "<1%", "<1 %"]),
    ],
)
def test_short_forms_of_numbers(text: str, cells: list[str]) -> None:
    assert [cell(text, width, "right").strip() for width in range(1, len(cells))] == cells[1:]
