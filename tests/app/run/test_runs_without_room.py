"""Whole runs whose tables cannot be written: they go on, and say what is missing."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from app.api.address import Remote
from app.api.client import Client
from probes.config.model import load, parse
from tests.app.run.test_run_probes import probe, send
from tests.support.runs import deck, deck_ends, measures, rows, stop
from tests.support.sight import becomes
from tests.support.veth import End, veth_pair


@pytest.fixture
def pair() -> Iterator[tuple[End, End]]:
    with veth_pair() as ends:
        yield ends


def test_a_run_outlives_a_full_disk_and_says_at_its_end_that_rows_are_missing(
    pair: tuple[End, End], tiny: Path
) -> None:
    left, _ = pair
    out, filler = tiny / "out", tiny / "filler"
    arguments = ("run", "-i", "left", "--headless", "--interval", "0.05", "-o", str(out))
    with deck(*arguments, ns=left.ns) as run:
        assert measures(out)
        code, _, error = deck_ends(*arguments, ns=left.ns)
        assert (code, error) == (
            2,
            f"probedeck: another run writes to {out}; choose another directory with -o\n",
        )
        with suppress(OSError), filler.open("ab", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        assert run.stderr is not None
        line = next(line for line in run.stderr if "export" in line)
        assert "windows is not written, its rows are lost: " in line
        filler.unlink()
        line = next(line for line in run.stderr if "export" in line)
        assert "windows is written again; " in line
        lost = int(line.split("again; ")[1].split()[0])
        before = len(rows(out / "windows.csv"))
        assert becomes(lambda: len(rows(out / "windows.csv")) > before)
        code, _, error = stop(run)
    assert code == 1
    assert re.match(
        rf"probedeck: could not be written: (.*, )?{lost} rows? of windows", error.splitlines()[-1]
    )
    numbers = [int(row["window"]) for row in rows(out / "windows.csv")]
    assert numbers[-1] - len(numbers) == lost


def test_rows_that_no_file_of_an_output_takes_end_a_run_with_code_1(
    pair: tuple[End, End], tiny: Path, tmp_path: Path
) -> None:
    left, _ = pair
    with suppress(OSError), (tiny / "filler").open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    code, _, error = deck_ends(
        "run", "-i", "left", "--headless", "--interval", "0.05", "--duration", "0.1",
        "-o", str(tmp_path / "out"), "--output", f"jsonl:{tiny}/out", ns=left.ns,
    )  # fmt: skip
    assert (code, error.splitlines()[-1]) == (1, "probedeck: could not be written: output jsonl")


def test_requests_that_the_tables_cannot_follow_leave_the_controller_as_it_is(
    pair: tuple[End, End], tmp_path: Path
) -> None:
    """A second table for standard output, by a request that is answered 201."""
    left, right = pair
    door = tmp_path / "api.sock"
    path = probe(tmp_path, format_name="csv")
    arguments = ("run", "-i", "left", "--headless", "--api-socket", str(door))
    flags = ("--probe", path, "--only", "--views", "metrics")
    with deck(*arguments, *flags, ns=left.ns) as run:
        assert becomes(door.exists, 10)
        with closing(Client(Remote(f"unix:{door}"))) as client:
            first = load(path)
            client.add(first.model_copy(update={"name": "second"}).on("left"))
            send(right, left, 7001, 20)
            assert becomes(lambda: client.status().unwritten == {"second.ingress.packets": 1})
            assert [info.name for info in client.probes()] == ["ports", "second"]
            client.remove("second")
        code, out, err = stop(run)
    assert code == 1
    assert err.splitlines()[-1] == (
        "probedeck: could not be written: 1 row of second.ingress.packets"
    )
    assert err.count("standard output takes one table, and second.ingress.packets is another") == 1
    assert [row["value"] for row in csv.DictReader(out.splitlines())] == ["20"]


@pytest.mark.slow
def test_rounds_of_a_deployment_leave_no_descriptor_behind(
    pair: tuple[End, End], tmp_path: Path
) -> None:
    """Three layouts in turn, added, exported and removed; every packet is counted."""
    left, right = pair
    out, door = tmp_path / "out", tmp_path / "api.sock"
    arguments = ("run", "--headless", "-o", str(out), "--api-socket", str(door), "--only")
    source = (
        "BPF_PERCPU_ARRAY(hits, u64, 1);\n"
        "struct shape { u64 SHAPE; };\n"
        "BPF_ARRAY(shapes, struct shape, 1);\n"
        "int count(struct __sk_buff *ctx) {\n"
        "    int zero = 0; u64 *n = hits.lookup(&zero); shapes.lookup(&zero);\n"
        "    if (n && ctx->protocol == bpf_htons(0x0800)) (*n)++;\n"
        "    return 0;\n"
        "}\n"
    )
    metrics = [{"name": "hits", "map": "hits", "snapshot": True, "agg": "sum"},
               {"name": "shapes", "map": "shapes"}]  # fmt: skip
    rounds, sent = 50, 0
    with deck(*arguments, ns=left.ns) as run:
        assert becomes(door.exists, 10)
        with closing(Client(Remote(f"unix:{door}"))) as client:
            open_files = []
            for number in range(rounds):
                text = source.replace("SHAPE", "abc"[number % 3])
                direction = {
                    "hook": "tc", "interface": "left", "source": text, "metrics": metrics
                }  # fmt: skip
                data = {"name": "count", "interval": 0, "ingress": direction}
                client.add(parse(data, "test"))
                send(right, left, 7001, 5)
                sent += 5
                client.remove("count")
                open_files.append(len(os.listdir(f"/proc/{run.pid}/fd")))
        code, _, err = stop(run)
    assert (code, err.count("Traceback")) == (0, 0)
    assert min(open_files[-10:]) <= max(open_files[:10])  # the files of one round may be open still
    counted = rows(out / "count.ingress.hits.csv")
    assert sum(int(row["value"]) for row in counted) == sent
    shapes = sorted(path.name for path in out.glob("count.ingress.shapes*"))
    assert len(shapes) == 3
    assert sum(len(rows(out / name)) for name in shapes) == rounds
