"""Runs the chain, compares its totals stage by stage, and ends it."""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from app.lab import netns
from bpf.errors import ProbedeckError
from deploy.demo.engines import EXPORT_PORT, METRICS_PORT, STORE, Engines, engines, until
from deploy.demo.network import COLLECTOR, Network, network, running
from deploy.demo.traffic import send

_DIFFERENT = 3
_LAST_S = 30.0
"""Longest time until the last record is in the store."""


class Totals(NamedTuple):
    """Totals of a stage; None: it does not count this."""

    records: int | None
    packets: int | None
    bytes: int | None


@contextmanager
def controllers(made: Network, work: Path) -> Iterator[None]:
    """Run a controller on each host, until all of its windows are exported."""
    processes = []
    with ExitStack() as stack:
        for name, space in made.hosts.items():
            command = [
                sys.executable, "-I", "-m", "app", "serve", "-i", "eth0", "--config", "none",
                "--ready-file", f"{work}/{name}.ready", "--api-socket", f"{work}/{name}.sock",
                "-o", f"{work}/{name}", "--views", "flows", "--owners",
                "--output", f"ipfix://{COLLECTOR}:{EXPORT_PORT}?owners=on",
                "--output", f"openmetrics://{made.managed[name]}:{METRICS_PORT}",
            ]  # fmt: skip
            processes.append(stack.enter_context(running(space, command, work / f"{name}.log")))
        ready = [work / f"{name}.ready" for name in made.hosts]
        started = "the start of the controllers"
        until(started, lambda: all(each.exists() for each in ready), *processes)
        yield


def counted(work: Path, hosts: Iterator[str]) -> Totals:
    """Return the totals of the controllers' tables."""
    records = packets = size = 0
    for name in hosts:
        with (work / name / "flows.csv").open(encoding="utf-8") as table:
            for row in csv.DictReader(table):
                records += 1
                packets += int(row["packets"])
                size += int(row["bytes"])
    return Totals(records, packets, size)


def stored(found: Engines) -> Totals:
    """Return the totals of the rows in ClickHouse's engine."""
    (row,) = found.query(
        "SELECT count() AS records, sum(packets) AS packets, sum(bytes) AS bytes "
        "FROM probedeck.flows"
    )
    return Totals(*(int(row[name]) for name in Totals._fields))


def settled(read: Callable[[], Totals], wanted: Totals) -> Totals:
    """Read a stage until it has what it should have, or for some time."""
    end = time.monotonic() + _LAST_S
    while (now := read()) != wanted and time.monotonic() < end:
        time.sleep(0.5)
    return now


def ask(space: int, query: str) -> None:
    """Ask the store as a user does."""
    command = [sys.executable, "-I", "-m", "app", "sql", "--store", STORE, query]
    print(f"\n$ probedeck sql --store {STORE} '{query}'", flush=True)
    with netns.inside(space):
        subprocess.run(command, check=True)


def run(demo: Path, work: Path) -> bool:
    """Whether all totals agree."""
    with network() as made, engines(made, demo, work) as found:
        with controllers(made, work):
            print(f"sent: {send(made)} datagrams between {len(made.hosts)} hosts", flush=True)
            time.sleep(2.5)
            by_tables = counted(work, iter(made.hosts))
            packets = "probedeck_flow_packets_total"
            sizes = "probedeck_flow_bytes_total"
            wanted = Totals(None, *by_tables[1:])
            scraped = settled(
                lambda: Totals(None, found.scraped(packets), found.scraped(sizes)), wanted
            )
        truth = counted(work, iter(made.hosts))
        stages = {
            "probedeck (tables)": truth,
            "goflow2 (decoded)": settled(
                lambda: Totals(found.decoded(), None, None), Totals(truth.records, None, None)
            ),
            "Kafka (consumed)": settled(lambda: Totals(**found.in_topic()), truth),
            "ClickHouse (stored)": settled(lambda: stored(found), truth),
            "Prometheus (scraped)": scraped,
        }
        print(f"\n{'stage':22}{'records':>10}{'packets':>10}{'bytes':>12}")
        agree = True
        for name, totals in stages.items():
            same = all(a is None or a == b for a, b in zip(totals, truth, strict=True))
            agree &= same
            cells = ["-" if each is None else str(each) for each in totals]
            line = f"{name:22}{cells[0]:>10}{cells[1]:>10}{cells[2]:>12}"
            print(line if same else f"{line}  differs")
        for query in ("talkers", "owners", "distinct"):
            ask(made.collector, query)
    return agree


def main() -> int:
    demo = Path(sys.argv[1])
    work = demo / "work"
    try:
        agree = run(demo, work)
    except ProbedeckError as error:
        print(f"demo: {error}", file=sys.stderr)
        for log in sorted(work.glob("*.log")):
            print(f"--- {log.name}\n" + log.read_text(errors="replace")[-600:], file=sys.stderr)
        return 1
    print("\nall totals agree" if agree else "\nthe totals differ")
    return 0 if agree else _DIFFERENT


sys.exit(main())
