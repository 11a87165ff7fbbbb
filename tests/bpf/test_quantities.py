"""A number with a unit has one meaning in every language, and one error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.cli.options import Options, byte_count
from app.commands.moment import moment
from app.config.path_settings import PathSettings
from app.config.schema import settings_of
from app.exporters.alerts.options import CommandOptions
from app.exporters.ipfix.options import IpfixOptions
from app.exporters.options import read_options
from app.lab.expectation import Expectation
from app.tape.condition import read_condition
from app.tape.line import TapeLine, TapeLineError
from bpf import quantities
from bpf.errors import TextError, UsageError
from probes.filter import Domain, parse
from probes.filter.fields import Quantity, times
from probes.monitor.condition import Condition
from probes.monitor.condition.logic import Comparison
from probes.monitor.condition.terms import Number
from probes.monitor.policy.ready import policy_of

NOW = 1_800_000_000 * 10**9


def filtered(field: Quantity, text: str, scale: float = 1.0) -> float:
    """Return the least value that passes `>=`, as a field's own mask tells."""
    rows = parse(f"x>={text}", Domain("rows", {"x": field}))
    low, high = 0.0, 1e18
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        passes = rows.mask(np.array([(middle,)], [("x", "f8")]))[0]
        low, high = (low, middle) if passes else (middle, high)
    return high * scale


def compared(text: str) -> float:
    root = Condition.parse(text)._root
    assert isinstance(root, Comparison)
    assert isinstance(root.right, Number)
    return float(root.right.value)


def stated(text: str) -> float:
    value = read_condition(TapeLine(text)).value
    assert isinstance(value, float)
    return value


Read = Callable[[str], float]
TIMES: dict[str, Read] = {
    "filter": lambda text: filtered(times("x", "", "s"), text, 1e-9),
    "condition": lambda text: Condition.parse(f"avg(packets, {text}) > 5").span,
    "policy": lambda text: policy_of(f"a: flows > 5 hold {text} -> dns").hold,
    "tape": lambda text: TapeLine(text).duration(),
    "tape condition": lambda text: stated(f"path.rtt < {text}"),
    "output": lambda text: read_options(CommandOptions, {"timeout": text}).timeout,
    "file": lambda text: float(settings_of(Options)["interval"].of_toml(text)),  # type: ignore[arg-type]
    "variable": lambda text: float(settings_of(Options)["interval"].of_text(text)),  # type: ignore[arg-type]
    "path.set": lambda text: PathSettings().changed(f"timeout={text}").timeout,
    "expectation": lambda text: Expectation.parse(f"a by {text}", ["a"]).by,
    "moment": lambda text: (NOW - moment(text, NOW)) / 1e9,
}
SIZES: dict[str, Read] = {
    "filter": lambda text: filtered(Quantity("x", "", quantities.SIZES), text),
    "condition": lambda text: compared(f"bytes > {text}"),
    "option": lambda text: byte_count("--memory", text),
    "output": lambda text: read_options(IpfixOptions, {"queue": text}).queue,
}
RATES: dict[str, Read] = {
    "filter": lambda text: filtered(Quantity("x", "", quantities.BIT_RATES), text),
    "condition": lambda text: 8 * compared(f"rate(bytes) > {text}"),
    "tape condition": lambda text: stated(f"rate > {text}"),
}


def cases(readers: dict[str, Read], *texts: tuple[str, float]) -> list[tuple[Read, str, float]]:
    return [
        pytest.param(read, *text, id=f"{name} {text[0]}")  # type: ignore[misc]
        for name, read in readers.items()
        for text in texts
    ]


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        *cases(
            TIMES,
            ("400ns", 4e-7), ("500us", 5e-4), ("250ms", 0.25), ("1.5s", 1.5), ("2m", 120.0),
            ("1h", 3600.0), ("1m30s", 90.0),
        ),
        *cases({k: v for k, v in TIMES.items() if k != "condition"}, ("1d", 86400.0)),
        *cases(
            SIZES,
            ("512B", 512.0), ("64kB", 64e3), ("64MB", 64e6), ("64MiB", 64 * 2.0**20),
            ("1.5GiB", 1.5 * 2.0**30), ("2GB", 2e9), ("64M", 64e6), ("64Ki", 65536.0),
            ("1e3B", 1e3),
        ),
        *cases(
            RATES,
            ("100Mbps", 1e8), ("100Mbit/s", 1e8), ("2MB/s", 16e6), ("1KiB/s", 8192.0),
            ("10kbps", 1e4),
        ),
    ],
)  # fmt: skip
def test_every_language_reads_the_same_number(read: Read, text: str, value: float) -> None:
    assert read(text) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize(
    ("read", "text", "problem", "hint"),
    [
        *((read, "5x", "'x' is no unit here", "units are ns, us, ms, s, m, h, d")
          for name, read in TIMES.items() if name != "condition"),
        (TIMES["condition"], "5x", "'x' is no unit here", "units are k, M"),
        *((read, "5Xib", "'Xib' is no unit here", "did you mean TiB?") for read in SIZES.values()),
        *((read, "5Mb", "'Mb' is no unit here", "did you mean M") for read in RATES.values()),
    ],
)  # fmt: skip
def test_every_language_has_the_same_error(read: Read, text: str, problem: str, hint: str) -> None:
    with pytest.raises((UsageError, TapeLineError)) as refused:
        read(text)
    error: Any = refused.value
    assert problem in error.message
    assert error.hint.startswith(hint)


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 1, "'' is not a number"),
        ("fast", 1, "'fast' is not a number"),
        ("-5s", 1, "'-5s' is not a number"),
        ("1.2.3s", 1, "'1.2.3s' is not a number"),
        ("7 years", 3, "'years' is no unit here"),
        ("1h30", 5, "a unit is missing"),
        ("30s1h", 5, "'h' is no unit here"),
        ("1h30mm", 5, "'mm' is no unit here"),
        ("1e999s", 1, "'1e999s' is too large"),
    ],
)
def test_a_mistake_has_its_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(TextError) as refused:
        quantities.quantity(text, quantities.TIMES)
    assert (refused.value.column, refused.value.problem) == (column, problem)
