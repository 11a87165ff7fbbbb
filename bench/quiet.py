"""Nothing happens, and nothing is told: a lab left alone.

    python -I -m bench.quiet [--minutes 10]

An application sends datagrams at a steady rate, and its path is traced. Every event of path tracing
is a false alarm.
"""

from __future__ import annotations

import argparse
import time

from app.lab.plan import LabPlan
from bench.support.report import Report
from bench.support.traced_lab import application, network, traced

_PACKETS = 500
"""Datagrams per second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    seconds = parser.parse_args().minutes * 60
    report = Report("A lab left alone")
    with (
        network(LabPlan(delays={1: 0.005, 3: 0.01})) as lab,
        traced(lab, lab.server_ipv4) as (_, collected),
        application(lab, "udp", lab.server_ipv4, seconds, _PACKETS),
    ):
        time.sleep(seconds)
        events = [event.text for _, event in collected.events if event.source == "path"]
        probes = len(collected.rows())
    for text in events:
        report.row("told", text)
    name = f"events about {probes} probes"
    report.target(name, str(len(events)), probes > 0 and not events)
    report.end()


if __name__ == "__main__":
    main()
