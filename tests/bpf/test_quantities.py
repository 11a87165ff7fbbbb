"""A number with a unit has one meaning in every language, and one error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.exporters.alerts.options import CommandOptions
from app.exporters.ipfix.options import IpfixOptions
from app.exporters.options import read_options
from app.lab.expectation import Expectation
from app.outputs.report import cells
from app.outputs.report.model import ReportedLoss
from app.run.options import Options, byte_count
from app.tape.condition import read_condition
from app.tape.line import TapeLine
from bpf import quantities
from bpf.errors import TextError, UsageError
from bpf.quantities import moment
from probes.config.options import changed, settings_of
from probes.filter import Domain, parse
from probes.filter.fields import Quantity, times
from probes.monitor.condition import Condition
from probes.monitor.condition.logic import Comparison
from probes.monitor.condition.terms import Number
from probes.monitor.policy.ready import policies_of
from probes.path.events.words import describe
from probes.path.options import PathOptions
from probes.path.records import PATH, PathRowKind
from probes.sockets.records import SOCKET, Limit
from probes.sockets.words import limit_text

ROOT = Path(__file__).parents[2]
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
    "policy": lambda text: policies_of(f"a: flows > 5 hold {text} -> dns")[0].hold,
    "tape": lambda text: TapeLine(text).duration(),
    "tape condition": lambda text: stated(f"path.rtt < {text}"),
    "output": lambda text: read_options(CommandOptions, {"timeout": text}).timeout,
    "file": lambda text: float(settings_of(Options)["interval"].of_toml(text)),  # type: ignore[arg-type]
    "variable": lambda text: float(settings_of(Options)["interval"].of_text(text)),  # type: ignore[arg-type]
    "path.set": lambda text: changed(PathOptions(), f"timeout={text}").timeout,
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
    with pytest.raises(UsageError) as refused:
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


def _socket(limit: Limit, **values: float) -> str:
    made = np.zeros(1, SOCKET)
    made["limit"] = limit
    for name, value in values.items():
        made[name] = value
    return limit_text(made[0])


def _event(**values: float) -> str:
    made = np.zeros(1, PATH)
    made["version"], made["kind"] = 4, PathRowKind.QUEUE_OVER
    for name, value in values.items():
        made[name] = value
    return describe(made[0])[1]


def _loss(share: float) -> str:
    lost = {"kind": PathRowKind.LOSS_OVER, "lost": round(share * 1e4), "loss_high": share}
    return _event(**lost, answered=round((1 - share) * 1e4))


def _reported(share: float) -> str:
    return cells._loss(ReportedLoss(round(share * 1e4), 10_000, share, share))[0] + " %"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("12.3 ms", [_event(amount_ns=12_340_000), _socket(Limit.QUEUE, queue_us=12_340)]),
        ("850 us", [_event(amount_ns=850_000), _socket(Limit.QUEUE, queue_us=850)]),
        ("80.0 ms", [_event(amount_ns=80_000_000), _socket(Limit.QUEUE, queue_us=80_000)]),
        ("1.2 s", [_event(amount_ns=1_240_000_000), _socket(Limit.QUEUE, queue_us=1_240_000)]),
        ("1m15s", [_event(amount_ns=75_000_000_000), quantities.duration(75.0)]),
        ("<0.1 %", [_loss(0.0004), _reported(0.0004)]),
        ("99.9 %", [_loss(0.999), _reported(0.999), _socket(Limit.RECEIVER, rwnd=0.999)]),
        (">99.9 %", [_loss(0.9998), _reported(0.9998), _socket(Limit.RECEIVER, rwnd=0.9998)]),
        ("100 %", [_loss(1.0), _reported(1.0), _socket(Limit.RECEIVER, rwnd=1.0)]),
        ("11.8 MiB", [_socket(Limit.READS_SLOWLY, rqueue=12_345_678)]),
        ("8.20 Mbit/s", [_socket(Limit.PACED, delivery_rate=1_025_000)]),
    ],
)
def test_a_value_has_one_text_on_screens_and_in_sentences(text: str, said: list[str]) -> None:
    for each in said:
        assert re.search(rf"(?<![\d.<>]){re.escape(text)}", each), each


def test_only_one_module_writes_quantities() -> None:
    """A number with a unit of time, size or share has no second formatter."""
    own = re.compile(r"[0-9]f\} ?(ms|us|s|%|[kMG]?i?B|[kMG]?bit)\b|:\.[0-9]%\}|[0-9]f\} %")
    found = {
        str(path.relative_to(ROOT))
        for room in ("app", "bpf", "probes", "widgets")
        for path in (ROOT / room).rglob("*.py")
        if own.search(path.read_text())
    }
    assert found == {
        "bpf/quantities.py",
        "app/cli/subcommands/segment.py",  # As many digits as the error beside it.
        "app/console/screens/triggers/columns.py",  # Gauges of three digits.
        "app/lab/expectation.py",  # Times below each other.
        "app/lab/topology.py",  # For `tc netem`.
    }
