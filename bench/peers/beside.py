"""Hop by hop, what each tracer sees of networks as people have them, in one run.

    python -I -m bench.peers.beside [--trip PATH] [NETWORK...]

probedeck traces an application with flows of all kinds, while mtr, traceroute, trippy (UDP, TCP and
ICMP each) and dublin-traceroute look at the same path. The networks are those of
`tests.topologies.catalogue`. The exit status is 1 if another tool sees a router or the destination
that probedeck does not see. A tool that is not installed is left out, with a line that says so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from app.lab.plan import CLIENT
from probes.path.records import DESTINATION_HOP
from tests.topologies.application import application
from tests.topologies.catalogue import LAYOUTS, Layout
from tests.topologies.network import Topology, topology
from tests.topologies.tracing import Tracing, tracing, wait

_LOOK = 8
"""Hops that every tool looks at."""
_KINDS = ("udp", "tcp")
"""Without pings: their replies make dublin-traceroute fail."""
_FLOWS = 4
_FIRST_SECONDS = 2
"""The application sends this long before the other tools start."""
_SECONDS = 60
"""A tool that takes longer is stopped."""

Seen = dict[int, dict[str, float]]
"""Median or mean round-trip time in ms by responder, by hop."""


def read_mtr(text: str) -> Seen:
    seen: Seen = {}
    for hub in json.loads(text)["report"]["hubs"]:
        if hub["host"] != "???":
            seen.setdefault(int(hub["count"]), {})[hub["host"]] = float(hub["Avg"])
    return seen


def read_traceroute(text: str) -> Seen:
    seen: Seen = {}
    for line in text.splitlines()[1:]:
        hop, *words = line.split()
        times: dict[str, list[float]] = {}
        responder = ""
        for word, unit in zip(words, [*words[1:], ""], strict=True):
            if re.fullmatch(r"[\da-f:.]*[:.][\da-f:.]*", word) and unit != "ms":
                responder = word
            elif unit == "ms":
                times.setdefault(responder, []).append(float(word))
        if times:
            seen[int(hop)] = {who: median(found) for who, found in times.items()}
    return seen


def read_trippy(text: str) -> Seen:
    return {
        int(hop["ttl"]): {host["ip"]: float(hop["avg"]) for host in hop["hosts"]}
        for hop in json.loads(text)["hops"]
        if hop["hosts"]
    }


def read_dublin(text: str) -> Seen:
    """Read the file that dublin-traceroute writes."""
    times: dict[tuple[int, str], list[float]] = {}
    for flow in json.loads(text)["flows"].values():
        for probe in flow:
            if probe["received"]:
                place = int(probe["sent"]["ip"]["ttl"]), str(probe["received"]["ip"]["src"])
                times.setdefault(place, []).append(float(probe["rtt_usec"]) / 1000)
    seen: Seen = {}
    for (hop, responder), found in times.items():
        seen.setdefault(hop, {})[responder] = median(found)
    return seen


@dataclass(frozen=True)
class Tool:
    """Another tracer."""

    name: str
    command: str
    read: Callable[[str], Seen]
    output: str = ""
    """The file that it writes; empty: standard output."""
    alone: bool = False
    """Whether echo replies to other programs make it fail; it has no IPv6, either."""


def tools(trip: str) -> list[Tool]:
    """Return the installed ones."""
    mtr = f"mtr -n -j -m {_LOOK} -i 0.2 -c 30"
    traceroute = f"traceroute -n -m {_LOOK} -q 5 -N 4 -w 1"
    trippy = f"{trip} -m json -C 20 -i 200ms -T 400ms -t {_LOOK} -r system --dns-timeout 50ms"
    found = [
        *(
            Tool(f"mtr {kind}", f"{mtr} {flag}", read_mtr)
            for kind, flag in _by_protocol("-u", "-T", "")
        ),
        *(
            Tool(f"traceroute {kind}", f"{traceroute} {flag}", read_traceroute)
            for kind, flag in _by_protocol("-U -p 9", "-T -p 9", "-I")
        ),
        *(
            Tool(f"trippy {kind}", f"{trippy} {flag}", read_trippy)
            for kind, flag in _by_protocol("-p udp -P 9 -R classic", "-p tcp -P 9", "-p icmp")
        ),
        Tool("dublin", f"dublin-traceroute -n 8 -T {_LOOK}", read_dublin, "trace.json", True),
    ]
    for program in dict.fromkeys(tool.command.split()[0] for tool in found):
        if not shutil.which(program):
            print(f"left out, because it is not installed: {program}")
    return [tool for tool in found if shutil.which(tool.command.split()[0])]


def _by_protocol(*flags: str) -> list[tuple[str, str]]:
    return list(zip(("udp", "tcp", "icmp"), flags, strict=True))


def look(network: Topology, tool: Tool, address: str, folder: Path) -> Callable[[], Seen]:
    """Start a tool; call the result for its findings."""
    folder.mkdir()
    with (folder / "output").open("w") as output, (folder / "errors").open("w") as errors:
        command = [*tool.command.split(), address]
        process = network.start(CLIENT, command, stdout=output, stderr=errors, cwd=folder)

    def finish() -> Seen:
        try:
            process.wait(_SECONDS)
            return tool.read((folder / (tool.output or "output")).read_text())
        except (subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
            words = [*(folder / "output").open(), *(folder / "errors").open()]
            last = words[-1].strip() if words else error
            print(f"  {tool.name}: no result, exit status {process.poll()}: {last}")
            return {}
        finally:
            process.kill()
            process.wait()

    return finish


def refuse_names(network: Topology) -> None:
    """Refuse queries of name servers at once; trippy and dublin-traceroute would wait for each."""
    for line in Path("/etc/resolv.conf").read_text().splitlines():
        if line.startswith("nameserver"):
            address = line.split()[1]
            family = "-6" if ":" in address else "-4"
            network.run(CLIENT, f"ip {family} route add unreachable {address}")


def seen_by_us(trace: Tracing, version: int) -> Seen:
    times: dict[tuple[int, str], list[float]] = {}
    for row in trace.of(version=version):
        if row.rtt_ms and row.outcome in ("answered", "unreachable"):
            times.setdefault((row.hop, row.responder), []).append(row.rtt_ms)
    seen: Seen = {}
    for (hop, responder), found in times.items():
        seen.setdefault(hop, {})[responder] = median(found)
    return seen


def show(name: str, seen: Seen, address: str) -> None:
    cells = []
    for hop in sorted(seen):
        for responder, took in sorted(seen[hop].items()):
            who = "destination" if responder == address else responder
            place = "" if hop == DESTINATION_HOP else f"{hop}:"
            cells.append(f"{place}{who} {took:.2f}")
    print(f"  {name:15} {'  '.join(cells) or 'nothing'}")


def compare(ours: Seen, others: dict[str, Seen], address: str) -> list[str]:
    """Return a line for each router, or the destination, that probedeck alone does not see."""
    witnesses: dict[tuple[int, str], list[str]] = {}
    for name, seen in others.items():
        for hop, responders in seen.items():
            for responder in responders:
                place = (DESTINATION_HOP if responder == address else hop), responder
                witnesses.setdefault(place, []).append(name)
    return [
        f"missing: {'destination' if hop == DESTINATION_HOP else f'hop {hop}, {responder}'}"
        f" (seen by {', '.join(names)})"
        for (hop, responder), names in sorted(witnesses.items())
        if responder not in ours.get(hop, {})
    ]


def run(name: str, layout: Layout, found: list[Tool], folder: Path) -> int:
    """Compare the tools on one network; returns the number of missing hops."""
    count = 0
    with topology(layout.plan) as network:
        layout.change(network)
        refuse_names(network)
        addresses = dict(zip((4, 6), layout.to or network.servers.values(), strict=True))
        built = " ".join(f"{each:g}" for each in network.delays_ms())
        for version, address in addresses.items():
            print(f"{name}, IPv{version} (plain path: {built} ms)", flush=True)
            work = folder / f"{name} {version}"
            with (
                application(network, to=[address], kinds=_KINDS, flows=_FLOWS, rate=50) as app,
                tracing(network, work, to=[address]) as trace,
            ):
                wait(_FIRST_SECONDS)
                others: dict[str, Seen] = {}
                for alone in (False, True):
                    started = {
                        tool.name: look(network, tool, address, work / tool.name)
                        for tool in found
                        if tool.alone == alone and (version == 4 or not tool.alone)
                    }
                    others |= {tool: finish() for tool, finish in started.items()}
                report = app.finish()
            ours = seen_by_us(trace, version)
            show("probedeck", ours, address)
            for tool, seen in others.items():
                show(tool, seen, address)
            missing = compare(ours, others, address)
            count += len(missing)
            for line in (*missing, *(f"event: {text}" for text in trace.events)):
                print(f"  {line}")
            if harm := report.harm():
                print(f"  the application: {harm}")
            print(flush=True)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trip", default="trip", help="trippy's program")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(LAYOUTS))
    options = parser.parse_args()
    found = tools(options.trip)
    with tempfile.TemporaryDirectory() as folder:
        missing = sum(
            run(name, LAYOUTS[name], found, Path(folder)) for name in options.networks or LAYOUTS
        )
    print(f"{missing} hops that another tool sees and probedeck does not")
    sys.exit(missing > 0)


if __name__ == "__main__":
    main()
