"""Expectations of policies over a capture, and their outcomes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network

from app.junit import Case, Suite
from app.lab.frames.windows import Told
from app.lab.policy_runner import CaptureResult
from bpf.errors import TextError, UsageError, did_you_mean
from bpf.quantities import TIMES, duration, moment, quantity
from probes.monitor.finding import Distinct, Finding

_FORM = re.compile(
    r"(?P<only>only\s+)?(?P<policy>\S+)"
    r"(?:\s+by\s+(?P<by>.+?))?"
    r"(?:\s+from\s+(?P<source>\S+))?(?:\s+to\s+(?P<destination>\S+))?"
)
_HINT = (
    "such as none, 'flood by 3s', 'flood by 03:12:07' "
    "or 'only flood by 3s from 192.0.2.7 to 198.51.100.0/24'"
)
_NONE = "none"
_DAY_NS = 86400 * 10**9
_ENDS = ("source", "destination")
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one expectation for one capture."""

    expectation: str
    met: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """A policy that has to become active, or none."""

    text: str
    policy: str = ""
    """Empty: no policy may become active."""
    only: bool = True
    """Whether no other policy may become active."""
    by: float = math.inf
    """Seconds after the first frame."""
    clock: str = ""
    """A time of day, or of a date, in place of `by`; UTC."""
    source: Network | None = None
    """A culprit of the finding has to lie there."""
    destination: Network | None = None
    """A victim of the finding has to lie there."""

    @classmethod
    def parse(cls, text: str, policies: Sequence[str]) -> Expectation:
        """Parse the value of `--expect`. Raises UsageError, also for an unknown policy."""
        words = " ".join(text.split())
        if words == _NONE:
            return cls(words)
        if not (found := _FORM.fullmatch(words)):
            raise UsageError(f"--expect {text!r} is not understood", hint=_HINT)
        policy = found["policy"]
        if policy not in policies:
            hint = did_you_mean(policy, policies)
            raise UsageError(f"--expect {text!r}: there is no policy {policy!r}", hint=hint)
        try:
            clock = found["by"] if ":" in (found["by"] or "") else ""
            by = quantity(found["by"], TIMES, None) if found["by"] and not clock else math.inf
            moment(clock or "0:00", 0)
            ends = [ip_network(found[end]) if found[end] else None for end in _ENDS]
        except TextError as error:
            raise error.of(f"--expect {text!r}") from None
        except ValueError as error:
            raise UsageError(f"--expect {text!r}: {error}") from None
        return cls(words, policy, bool(found["only"]), by, clock, *ends)

    def judge(self, result: CaptureResult) -> Outcome:
        """Compare with the policies that became active."""
        fired = [told for told in result.told if told.transition.begins]
        mine = [told for told in fired if told.transition.policy == self.policy]
        others = [told for told in fired if told.transition.policy != self.policy]
        by = self.by
        if self.clock:
            # The first such time of day after the begin.
            until = moment(self.clock, result.begin_ns + _DAY_NS)
            by = (until - result.begin_ns) / 1e9
        right = [told for told in mine if told.seconds <= by and self._names(told.finding)]
        untested = [name for name in result.untested if self.only or name == self.policy]
        met = (bool(right) or not self.policy) and not (self.only and others) and not untested
        reasons = [_words(told) for told in (right or mine)[:1]]
        if untested:
            reasons.append(f"{', '.join(untested)}: not tested")
        elif self.policy and not mine:
            reasons.append("not told")
            if why := result.busiest.get(self.policy):
                reasons.append(f"in the window with most packets {why}")
        if self.only:
            first: dict[str, Told] = {}
            for told in others:
                first.setdefault(told.transition.policy, told)
            reasons += [f"{name} {_words(told)}" for name, told in first.items()]
        return Outcome(self.text, met, "; ".join(reasons) or "nothing was told")

    def _names(self, finding: Finding | None) -> bool:
        if not finding:
            return not (self.source or self.destination)
        return _is_in(finding.sources, self.source) and _is_in(
            finding.destinations, self.destination
        )


def _is_in(found: Distinct, network: Network | None) -> bool:
    """Whether an address with at least a tenth of the packets or flows, or the common prefix of
    nearly all, lies in a network."""
    names = [*(each.name for each in found.listed), found.network]
    networks = [ip_network(name) for name in names if name]
    return network is None or any(
        each.version == network.version and each.subnet_of(network)  # type: ignore[arg-type]
        for each in networks
    )


def _words(told: Told) -> str:
    words, found = f"told after {duration(told.seconds)}", told.finding
    if not (found and found.packets):
        return words
    ends = [
        end.chief or end.network or f"{end.count} {what}"
        for what, end in (("sources", found.sources), ("destinations", found.destinations))
    ]
    return f"{words}, from {ends[0]} to {ends[1]}"


def suite(name: str, result: CaptureResult, outcomes: Sequence[Outcome]) -> Suite:
    """Return the outcomes of a capture as a suite, with a case for each expectation."""
    cases = [Case(each.expectation, "" if each.met else each.reason) for each in outcomes]
    return Suite(name, cases, result.seconds, "\n".join(lines(result)))


def lines(result: CaptureResult) -> Iterable[str]:
    """Yield a line for each transition, and for each note."""
    for told in result.told:
        change = told.transition
        yield f"{told.seconds:10.3f} s  {change.policy} is {change.after.label}: {change.cause}"
        if told.finding:
            yield f"{'':14}{told.finding.text}"
    for name, why in result.untested.items():
        yield f"  not tested: {name}: {why}"
    for note in result.notes:
        yield f"  note: {note}"
