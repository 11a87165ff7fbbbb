"""The product as an operator runs it: `probedeck trace`, and the tables that it writes."""

from __future__ import annotations

import csv
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import NamedTuple

from app.lab.plan import CLIENT
from probes.path.records import DESTINATION_HOP
from tests.support.runs import deck
from tests.topologies.network import Topology

TIMEOUT = 0.5
"""Seconds after which a probe is lost; all built paths are much shorter."""
PROTOCOLS = {"tcp": {4: 6, 6: 6}, "udp": {4: 17, 6: 17}, "echo": {4: 1, 6: 58}}
STDERR = "stderr"
_START_SECONDS = 90
_MOST_SECONDS = 15
_HARMLESS = ("tc ingress: ", "tc egress: ", "xdp: ")
"""Events that name the hooks."""


class Row(NamedTuple):
    """A row of hops.csv."""

    version: int
    protocol: int
    source_port: int
    destination: str
    hop: int
    outcome: str
    responder: str
    rtt_ms: float
    """0 without an answer."""
    sent_ns: int
    fields: dict[str, str]


class Answer(NamedTuple):
    """The flow and the hop of an answered probe."""

    version: int
    protocol: int
    source_port: int
    hop: int


def _hop(text: str) -> int:
    return int(text) if text.isdigit() else DESTINATION_HOP


class Tracing:
    """A running or ended `probedeck trace`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._read = 0
        """Bytes of hops.csv whose rows `answers` has added."""
        self._columns: list[str] = []
        self._answers = set[Answer]()
        end = time.monotonic() + _START_SECONDS
        while "tc egress" not in self.output:
            if process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the trace did not start: {self.output}")
            time.sleep(0.02)

    @property
    def output(self) -> str:
        """Standard error."""
        return (self._folder / STDERR).read_text()

    def answers(self) -> set[Answer]:
        """Return the answers that are written so far."""
        path = self._folder / "hops.csv"
        if not path.exists():
            return self._answers
        with path.open("rb") as file:
            file.seek(self._read)
            # A window's rows are written at once; the table begins with the first window.
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read += len(text)
        rows = csv.reader(text.decode().splitlines())
        if not self._columns:
            self._columns = next(rows, [])
        for values in rows:
            row = dict(zip(self._columns, values, strict=True))
            if row["outcome"] == "answered":
                version, protocol = int(row["ip_version"]), int(row["protocol"])
                port, hop = int(row["source_port"] or 0), _hop(row["hop"])
                self._answers.add(Answer(version, protocol, port, hop))
        return self._answers

    def texts(self) -> list[str]:
        """Return the texts of the events that are written so far."""
        path = self._folder / "events.csv"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        return [row["text"] for row in csv.DictReader(whole)]

    def finish(self) -> None:
        """Interrupt the trace, and wait for its end. A second call does nothing."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        assert self._process.wait(20) == 0, self.output

    @cached_property
    def rows(self) -> list[Row]:
        return [
            Row(
                int(row["ip_version"]),
                int(row["protocol"] or 0),
                int(row["source_port"] or 0),
                row["destination"],
                _hop(row["hop"]),
                row["outcome"],
                row["responder"],
                int(row["rtt_ns"] or 0) / 1e6,
                int(row["sent_ns"]),
                row,
            )
            for row in self._table("hops")
        ]

    @cached_property
    def events(self) -> list[str]:
        """Texts of events, without the names of hooks."""
        texts = [row["text"] for row in self._table("events")]
        return [text for text in texts if not text.startswith(_HARMLESS)]

    def summaries(self, hop: int) -> list[dict[str, str]]:
        """Rows of paths.csv about a hop, in order of time."""
        found = [row for row in self._table("paths") if row["kind"] == "summary"]
        return [row for row in found if _hop(row["hop"]) == hop]

    def _table(self, name: str) -> Iterator[dict[str, str]]:
        with (self._folder / f"{name}.csv").open(newline="") as file:
            yield from csv.DictReader(file)

    def of(
        self, kind: str = "", version: int = 0, hop: int = 0, outcome: str = "", since: int = 0
    ) -> list[Row]:
        """Rows of a kind of flow (`udp4`'s kind is `udp`), IP version, hop and outcome."""
        protocols = PROTOCOLS[kind].values() if kind else ()
        return [
            row
            for row in self.rows
            if (not kind or row.protocol in protocols)
            and (not version or row.version == version)
            and (not hop or row.hop == hop)
            and (not outcome or row.outcome == outcome)
            and row.sent_ns >= since
        ]

    def responders(self, kind: str, version: int, hop: int) -> set[str]:
        return {row.responder for row in self.of(kind, version, hop, "answered")}

    def median_ms(self, kind: str, version: int, hop: int) -> float:
        """Median of round-trip times; infinite without an answer."""
        return median(self.times(kind, version, hop) or [float("inf")])

    def times(self, kind: str, version: int, hop: int, since: int = 0) -> list[float]:
        """Round-trip times in ms; an answer to a flow's packet may have none."""
        rows = self.of(kind, version, hop, "answered", since)
        return [row.rtt_ms for row in rows if row.rtt_ms]

    def lost(self) -> Counter[int]:
        """Lost probes by hop."""
        return Counter(row.hop for row in self.of(outcome="unanswered"))


@contextmanager
def tracing(
    network: Topology,
    folder: Path,
    *arguments: str,
    to: Sequence[str] = (),
    interface: str = "",
    timeout: float = TIMEOUT,
) -> Iterator[Tracing]:
    """Trace from the client to addresses (default: the server's) until the block ends."""
    folder.mkdir(exist_ok=True)
    with (
        (folder / STDERR).open("w") as errors,
        deck(
            "trace", "-i", interface or network.interface, *(to or network.servers.values()),
            "-o", str(folder), "--timeout", str(timeout), *arguments,
            ns=network.nodes[CLIENT], stdout=subprocess.DEVNULL, stderr=errors,
        ) as process,
    ):  # fmt: skip
        started = Tracing(process, folder)
        yield started
        started.finish()


def wait(seconds: float) -> None:
    """Let the traffic and the trace run."""
    time.sleep(seconds)


def wait_until(condition: Callable[[], bool]) -> None:
    """Let the traffic and the trace run until the condition holds, at most for `_MOST_SECONDS`."""
    end = time.monotonic() + _MOST_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
