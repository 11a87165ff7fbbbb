"""Attacks that policies tell, alone and beside other traffic, and false alarms.

    python -I -m bench.policies [--policies examples/policies.toml] [--captures DIR] [--ratio 10]

First come the made attacks and loads of `bench/policies/made.py`, those by which the
policies were chosen, and others. Then come captures. `DIR/labels.toml` describes them:

    [[capture]]
    file = "pkt.TCP.synflood.spoofed.pcap"
    policy = "syn_flood"           # empty or missing: ordinary traffic
    source = "192.0.2.66"          # the culprit, if there is one
    destination = "198.51.100.1"   # the victim, if there is one
    start = 33.0                   # seconds until the attack begins

Each attack runs alone and, from its begin on for a few seconds, in a mix of all ordinary captures
at `--ratio` times its rate, where it begins after two seconds. It is told if its policy becomes
active within three seconds, and its culprit if the finding's largest source or destination is the
label's. Ordinary captures and made loads run alone. Captures and frames of the mix have their own
times; copies of the ordinary captures fill the mix, each with other addresses.
"""

from __future__ import annotations

import argparse
import heapq
import random
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.lab.capture import CaptureFile, open_capture
from app.lab.frames import CapturedFrame
from app.lab.frames.windows import Told
from app.lab.policy_runner import PolicyRunner
from bench.policies.made import scores
from bench.support.report import Report
from bpf.errors import ProbedeckError
from probes.monitor.policy import load
from tests.support.made.attacks import LOCAL
from tests.support.made.judge import alarms_of, named

_SECOND = 1_000_000_000
_BY = 3.0
"""Seconds within which a policy has to report an attack."""
_TARGET = 0.95
_QUIET, _ATTACK = 2.0, 3.0
"""Seconds of a mix before the attack, and at most from its begin on."""
_MOST_RATE = 20_000
"""Frames a second of a mix: more would only test the patience of the reader."""
_IPV4_AT, _SOURCE_AT, _DESTINATION_AT = 12, 27, 31
"""The Ethernet type, and the second byte of each address."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A capture and its truth."""

    name: str
    frames: tuple[CapturedFrame, ...]
    """From time 0 on."""
    policy: str = ""
    source: str = ""
    destination: str = ""
    start: float = 0.0

    @property
    def attack(self) -> tuple[CapturedFrame, ...]:
        """The frames from the attack's begin on."""
        begin = round(self.start * _SECOND)
        end = begin + round(_ATTACK * _SECOND)
        return shifted((f for f in self.frames if begin <= f.time_ns < end), -begin)


def shifted(frames: Iterable[CapturedFrame], by_ns: int) -> tuple[CapturedFrame, ...]:
    return tuple(frame._replace(time_ns=frame.time_ns + by_ns) for frame in frames)


def read(path: Path) -> tuple[CapturedFrame, ...]:
    with open_capture(str(path)) as file:
        frames = sorted(CaptureFile(file, path.name), key=lambda frame: frame.time_ns)
    return shifted(frames, -frames[0].time_ns) if frames else ()


def labelled(folder: Path) -> Iterator[Labelled]:
    for entry in tomllib.loads((folder / "labels.toml").read_text())["capture"]:
        name = entry.pop("file")
        try:
            yield Labelled(name, read(folder / name), **entry)
        except ProbedeckError as error:
            print(f"left out: {error}")


def peak(frames: Sequence[CapturedFrame]) -> int:
    """Frames of the busiest second."""
    return int(np.bincount([frame.time_ns // _SECOND for frame in frames]).max())


class OrdinaryMix:
    """Windows of all ordinary captures at once, each from a place in it at random."""

    def __init__(self, captures: Sequence[Labelled], seed: int = 1) -> None:
        self._captures = [each.frames for each in captures if each.frames]
        self._random = random.Random(seed)

    def frames(self, rate: float, seconds: float) -> tuple[CapturedFrame, ...]:
        wanted, made, copy = rate * seconds, 0, 0
        parts: list[tuple[CapturedFrame, ...]] = []
        while made < wanted:
            copy += 1
            for frames in self._random.sample(self._captures, len(self._captures)):
                part = self._part(frames, round(seconds * _SECOND), copy)
                parts.append(part)
                made += len(part)
                if made >= wanted:
                    break
        return tuple(heapq.merge(*parts, key=lambda frame: frame.time_ns))

    def _part(
        self, frames: Sequence[CapturedFrame], length_ns: int, copy: int
    ) -> tuple[CapturedFrame, ...]:
        begin = frames[self._random.randrange(len(frames))].time_ns
        begin = max(0, min(begin, frames[-1].time_ns - length_ns))
        part = shifted((f for f in frames if begin <= f.time_ns < begin + length_ns), -begin)
        return tuple(frame._replace(data=_moved(frame.data, copy)) for frame in part)


def _moved(data: bytes, copy: int) -> bytes:
    """The frame from and to other addresses."""
    if data[_IPV4_AT : _IPV4_AT + 2] != b"\x08\x00" or len(data) <= _DESTINATION_AT:
        return data
    moved = bytearray(data)
    moved[_SOURCE_AT] ^= copy & 0xFF
    moved[_DESTINATION_AT] ^= copy & 0xFF
    return bytes(moved)


class Score:
    def __init__(self) -> None:
        self.attacks = self.told = self.named = self.runs = self.false = 0

    def attack(
        self, how: str, capture: Labelled, alarms: Mapping[str, Told], begin: float
    ) -> Iterator[str]:
        self.attacks += 1
        mine = alarms.get(capture.policy)
        in_time = mine is not None and mine.seconds - begin <= _BY
        who = mine is not None and named(mine, capture.source, capture.destination)
        self.told += in_time
        self.named += in_time and who
        when = f"{mine.seconds - begin:.1f} s" if mine else "-"
        words = f"{capture.policy:18}{how:8}{when:>7}  {'who' if who else '   '}  {capture.name}"
        yield words if in_time and who else f"{words}  MISSED"
        if mine and not who:
            yield f"    {mine.finding.text if mine.finding else 'no finding'}"
        yield from self.others(capture.name, alarms, capture.policy)

    def others(self, name: str, alarms: Mapping[str, Told], expected: str = "") -> Iterator[str]:
        self.runs += 1
        wrong = {policy: told for policy, told in alarms.items() if policy != expected}
        self.false += bool(wrong)
        for policy, told in wrong.items():
            yield f"    FALSE {policy} {told.seconds:.1f} s in {name}: {told.transition.cause}"


def show(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--captures", type=Path)
    parser.add_argument("--policies", type=Path, default=Path("examples/policies.toml"))
    parser.add_argument("--ratio", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a made one")
    options = parser.parse_args()
    with PolicyRunner(load(options.policies).policy, local=[LOCAL]) as runner:
        report = Report("Made attacks and loads")
        for way, score in scores(runner, options.seconds):
            report.row(f"{way}: told", f"{score.told} of {score.attacks}")
            share = score.named / (score.attacks - score.holes)
            text = f"{score.named} of {score.attacks}, {score.holes} are known holes"
            report.target(f"{way}: told and named", text, share >= _TARGET)
            report.row(f"{way}: another alarm, too", f"{score.misnamed} of {score.attacks}")
            text = f"{score.false} of {score.loads}"
            report.target(f"{way}: false alarms", text, score.false <= ("held" in way))
        if options.captures:
            over_captures(runner, options.captures, options.ratio)
        report.end()


def over_captures(runner: PolicyRunner, folder: Path, ratio: float) -> None:
    captures = list(labelled(folder))
    attacks = [each for each in captures if each.policy]
    ordinary = [each for each in captures if not each.policy]
    mix, score, quiet = OrdinaryMix(ordinary), Score(), Score()
    for each in attacks:
        show(score.attack("alone", each, alarms_of(runner, each.frames), each.start))
        attack = shifted(each.attack, round(_QUIET * _SECOND))
        beside = mix.frames(min(ratio * peak(attack), _MOST_RATE), _QUIET + _ATTACK)
        mixed = heapq.merge(beside, attack, key=lambda frame: frame.time_ns)
        show(score.attack("mixed", each, alarms_of(runner, mixed), _QUIET))
    for each in ordinary:
        show(quiet.others(each.name, alarms_of(runner, each.frames)))
    share = score.named / max(1, score.attacks)
    report = Report(f"Told within {_BY:g} s, alone and beside {ratio:g} times the rate:")
    report.row("right name", f"{score.told} of {score.attacks}")
    report.target("right name and culprit", f"{score.named} of {score.attacks}", share >= _TARGET)
    report.row("another alarm beside an attack", f"{score.false} of {score.runs}")
    report.target("false alarms", f"{quiet.false} of {quiet.runs}", not quiet.false)
    report.end()


if __name__ == "__main__":
    main()
