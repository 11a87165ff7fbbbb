"""`probedeck trace --report`: runs in the lab whose reports are read back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.lab.network import Lab
from tests.app.cli.test_trace import HOPS, router, talk
from tests.support import mmdb
from tests.support.runs import COMMAND, Remains, deck, deck_ends, rows, stop
from tests.support.sight import becomes, node


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(traffic=False) as network:
        yield network


@pytest.fixture(scope="module")
def client(lab: Lab) -> Iterator[int]:
    """The client's namespace."""
    fd = lab.open_namespace()
    yield fd
    os.close(fd)


def destinations(text: str) -> dict[str, Any]:
    """Of a report as JSON, by address."""
    found = json.loads(text)
    assert found["schema"] == "path-report/1"
    return {each["address"]: each for each in found["destinations"]}


@pytest.mark.slow
@pytest.mark.parametrize("version", [4, 6])
def test_a_report_says_what_the_tables_say(
    lab: Lab, client: int, tmp_path: Path, version: int
) -> None:
    """Each hop with its router and its probes, with the program's exit code."""
    to = lab.server_ipv4 if version == 4 else lab.server_ipv6
    code, out, err = deck_ends(
        "trace", "-i", lab.interface, to, "--report", "json", "--timeout", "0.5", "-o",
        str(tmp_path), "--", *talk(to, 600), ns=client,
    )  # fmt: skip
    assert code == 7
    assert "it is said\n" in err
    table = [row for row in rows(tmp_path / "hops.csv") if row["measured_by"] == "probe"]
    found = destinations(out)[to]
    assert {str(hop["hop"]): hop["routers"][0]["address"] for hop in found["hops"]} == {
        hop: router(version, int(hop)) for hop in HOPS
    }
    assert found["packets"] >= 600
    for hop in found["hops"]:
        here = [row for row in table if int(row["hop"]) == hop["hop"]]
        outcomes = Counter(row["outcome"] for row in here)
        assert hop["sent"] == len(here) - outcomes["beyond path"] - outcomes["dropped"]
        assert (hop["answered"], hop["lost"]) == (outcomes["answered"], outcomes["unanswered"])
        (found_router,) = hop["routers"]
        assert (found_router["share"], found_router["flows"]) == (1.0, 1)
        times = sorted(int(row["rtt_ns"]) for row in here if row["rtt_ns"])
        assert (found_router["min_ns"], found_router["max_ns"]) == (times[0], times[-1])
        median = times[(len(times) - 1) // 2]
        assert found_router["median_ns"] == pytest.approx(median, rel=1e-3, abs=1)
    own = found["probes"]
    assert own["sent"] == sum(row["outcome"] != "dropped" for row in table)
    assert f"probedeck: {len(table)} probes, {own['answered']} answered, " in err


@pytest.mark.slow
def test_the_destination_has_rows_of_its_own(lab: Lab, client: int) -> None:
    """Round trips of ping, which a program may have, and no router's number."""
    to = lab.server_ipv4
    code, out, _ = deck_ends(
        "trace", "-i", lab.interface, to, "--report", "json", "--timeout", "0.3", "--",
        "ping", "-c", "20", "-i", "0.05", "-q", to, ns=client,
    )  # fmt: skip
    assert code == 0
    (end,) = destinations(out)[to]["end_to_end"]
    assert (end["measured_by"], end["lost"]) == ("icmp echo", 0)
    assert 10 <= end["samples"] <= 20
    assert 0 < end["min_ns"] <= end["median_ns"] <= end["max_ns"] < 100_000_000


@pytest.mark.slow
def test_networks_of_routers_are_named(lab: Lab, client: int, tmp_path: Path) -> None:
    """In the report and in the tables, by a local database."""
    to = lab.server_ipv4
    databases = [
        mmdb.write(tmp_path / "asn.mmdb", {"10.94.0.0/22": {"asn": 64500, "as_name": "Near"}}),
        mmdb.write(tmp_path / "country.mmdb", {"10.94.0.0/16": {"country": {"iso_code": "DE"}}}),
    ]
    options = [word for each in databases for word in ("--networks", each)]
    code, out, _ = deck_ends(
        "trace", "-i", lab.interface, to, "--report", *options, "--timeout", "0.3", "-o",
        str(tmp_path), "--", *talk(to, 400), ns=client,
    )  # fmt: skip
    assert code == 7
    remarks = [line.rpartition("  ")[2] for line in out.splitlines() if "10.94." in line]
    # Then the destination, whose packets show that the path arrives.
    assert remarks[1:7] == ["AS64500 Near, DE"] * 4 + ["DE"] * 2
    answered = [row for row in rows(tmp_path / "hops.csv") if row["responder"] == router(4, 2)]
    assert {(row["responder_asn"], row["responder_as_name"], row["responder_country"])
            for row in answered} == {("64500", "Near", "DE")}  # fmt: skip
    assert {row["responder_name"] for row in answered} == {""}


@pytest.mark.slow
def test_the_report_alone_has_standard_output(lab: Lab, client: int) -> None:
    """As wide as it needs to be: standard output is no terminal."""
    to = lab.server_ipv4
    code, out, _ = deck_ends(
        "trace", "-i", lab.interface, "--report", to, lab.server_ipv6, "--timeout", "0.3", "--",
        *talk(to, 300), ns=client,
    )  # fmt: skip
    assert code == 7
    lines = out.splitlines()
    assert lines[0].startswith(f"Paths by {lab.interface}, ")
    assert sum(line.split()[:2] == ["3", router(4, 3)] for line in lines) == 1
    assert f"{lab.server_ipv6}: 0 packets of applications, 0 flows probed" in lines
    assert "schema" not in out


def test_an_interrupt_ends_with_the_report(lab: Lab, client: int, tmp_path: Path) -> None:
    to = lab.server_ipv4
    arguments = ("trace", "-i", lab.interface, to, "--report", "markdown", "-o", str(tmp_path))
    with deck(*arguments, ns=client) as run, node(lab):
        sending = subprocess.Popen(talk(to, 100_000), stdout=subprocess.DEVNULL)
        try:
            assert becomes(lambda: len(rows(tmp_path / "hops.csv")) > 200, 15)
            remains = Remains(run)
            code, out, err = stop(run, signal.SIGINT)
        finally:
            sending.kill()
            sending.wait()
    assert code == 0
    remains.assert_gone()
    assert f"\n## {to}\n" in out
    assert f"| 6 | {router(4, 6)} |" in out
    assert err.splitlines()[-1].startswith("probedeck: ")


@pytest.mark.slow
def test_a_reader_that_has_left_ends_nothing_badly(lab: Lab, client: int) -> None:
    to = lab.server_ipv4
    command = f"{' '.join(COMMAND)} trace -i {lab.interface} {to} --report --duration 1 | true"
    with node(lab):
        run = subprocess.run(
            ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
            capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    assert run.stdout == "0\n"
    assert "Traceback" not in run.stderr
    assert "Exception" not in run.stderr


def test_a_report_that_cannot_be_written(lab: Lab, client: int) -> None:
    with Path("/dev/full").open("w") as full:
        code, _, err = deck_ends(
            "trace", "-i", lab.interface, lab.server_ipv4, "--report", "--duration", "0.3",
            ns=client, stdout=full,
        )  # fmt: skip
    assert code == 1
    assert "probedeck: the report could not be written: No space left on device\n" in err
