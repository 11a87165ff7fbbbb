"""Checks of the two sides of a comparison."""

from __future__ import annotations

from bpf.errors import TextError
from bpf.quantities import shown
from probes.monitor.condition import terms
from probes.monitor.condition.units import RATIO


def check_exact(symbol: str, left: terms.Expression, right: terms.Expression, column: int) -> None:
    """Refuse == and != of an estimate, except with 0."""
    estimated = (
        part
        for term in (left, right)
        for part in terms.parts(term)
        if isinstance(part, terms.MetricTerm) and part.estimated
    )
    zero = any(isinstance(term, terms.Number) and not term.value for term in (left, right))
    if symbol in ("==", "!=") and not zero and (part := next(estimated, None)):
        problem = f"{symbol} compares exact values, and {shown(part.name)} is an estimate"
        raise TextError(problem, "", column, hint="write >= or <=")


def check_units(left: terms.Expression, right: terms.Expression, column: int) -> None:
    units = left.unit, right.unit
    if units[0].fits(units[1]):
        return
    hint = terms.rate_hint((left, units[0]), (right, units[1]))
    if not hint and RATIO in units:
        hint = "a ratio has one unit twice, as udp_packets / packets"
    problem = f"{units[0].label} can't be compared with {units[1].label}"
    raise TextError(problem, "", column, hint=hint)


def check_share(left: terms.Expression, right: terms.Expression, start: int, begin: int) -> None:
    """Refuse a number that a share never reaches; the sides begin at these columns."""
    for share, number, column in ((left, right, begin), (right, left, start)):
        if (
            isinstance(share, terms.MetricTerm)
            and share.unit == RATIO
            and isinstance(number, terms.Number)
            and number.value > 1
        ):
            percent = "" if number.suffix else f"write {number.digits}%"
            problem = f"{share.name} is a share and never above 1"
            raise TextError(problem, "", column, hint=percent)
