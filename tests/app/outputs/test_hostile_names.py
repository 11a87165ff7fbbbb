"""Names that any local user chooses reach no output as control characters, and no formula."""

from __future__ import annotations

import csv
import io
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict

from app.explain import choose, explain, lines
from app.exporters.alerts.exporter import AlertFilter
from app.exporters.alerts.log_sockets import journal_entry, syslog_message
from app.exporters.ipfix.templates import IPFIX, NTOP
from app.exporters.openmetrics.exposition import exposition
from app.exporters.openmetrics.metric_state import MetricState
from app.exporters.otlp import encoding
from app.outputs.formats import FORMATS, csv_rows
from app.outputs.owners.owner_join import OwnerJoin
from app.outputs.sink import Sink
from app.outputs.view import OwnedFlows
from app.outputs.views import VIEWS
from bpf.attach.interface import Interface
from bpf.attach.rtnetlink import text as netlink_text
from bpf.errors import UsageError
from bpf.sockets.cgroup_paths import CgroupPaths
from probes.snapshot import Event, Item
from probes.sockets.holders import EVENT, OPENED
from probes.sockets.names import NameFinder
from probes.sockets.owners.known import Known
from tests.app.explain.made import upload
from tests.app.exporters.files.made import output
from tests.app.exporters.files.test_files import read
from tests.app.exporters.ipfix.reader import text
from tests.app.exporters.ipfix.test_messages import read as messages
from tests.app.exporters.scraped import OPEN_METRICS
from tests.support.console.owners import Process

EVIL = "\x1b]0;pwn\x07\x1b[31mX"
"""Sets the title and the colour of a terminal."""
NASTY = ("\x9b31mX", "a\x7fb", "a\u202eb", "a\nb", "a\tb", "a\udcffb", "a\u2066b")
CONTAINER, POD = "ab" * 32, "8f7e6d5c-1111-2222-3333-444455556666"


def assert_clean(data: bytes | str) -> None:
    text = data if isinstance(data, str) else data.decode(errors="surrogateescape")
    found = {each for each in text if not each.isprintable() and each != "\n"}
    assert not found, ascii(text)


def strings(value: object) -> str:
    """Return all texts of a decoded value: its repr would hide control characters."""
    if isinstance(value, dict):
        return "".join(strings(each) for pair in value.items() for each in pair)
    if isinstance(value, list):
        return "".join(map(strings, value))
    return value if isinstance(value, str) else ""


def opener(comm: bytes) -> str:
    """Return the name of a process as probes know it."""
    known, row = Known(), np.zeros(1, EVENT)
    row["what"], row["cookie"], row["tgid"], row["comm"] = OPENED, 9, 77, comm
    known.take_events(row, 0.0)
    found = known.opener(9)
    assert found is not None
    return found.comm.decode()


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """An owner as the sources tell it: each of its names wants to write to the terminal."""
    root = tmp_path / "host"
    docker = root / "var/lib/docker/containers" / CONTAINER
    docker.mkdir(parents=True)
    (docker / "config.v2.json").write_text(json.dumps({"Name": f"/=c{EVIL}"}))
    pods = root / "var/log/pods"
    pods.mkdir(parents=True)
    (pods / f"@ns_{EVIL}_{POD}").touch()
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text(f"-u{EVIL}\u202e:x:1000:1000::/:/bin/sh\n")
    path = f"/kubepods/pod{POD}/docker/{CONTAINER}/+{EVIL}\udcff.service"
    monkeypatch.setattr(CgroupPaths, "path", lambda self, cgroup: path)
    with closing(NameFinder(root)) as finder:
        names, user = finder.owner(77), finder.user(1000)
    comm = opener(b"=1+\x1b[31m\x9b\xe2\x80\xae"[:15])
    return Process(comm, 77, names.unit, user, names.container, names.pod)


def test_each_name_is_cleaned_where_it_enters(hostile: Process) -> None:
    assert hostile == Process(
        "=1+?[31m??", 77, "+?]0;pwn??[31mX?.service", "-u?]0;pwn??[31mX?", "=c?]0;pwn??[31mX",
        "@ns/?]0;pwn??[31mX",
    )  # fmt: skip
    for name in (EVIL, *NASTY):
        raw = name.encode(errors="surrogateescape")
        assert_clean(opener(raw[:15]))
        assert_clean(Interface(name, 1, True).name)
        assert_clean(netlink_text(raw))
        event = Event.now("warning", name, name, name)
        assert_clean(event.source + event.text + event.subject)
        assert_clean(str(UsageError(f"no file {name}", hint=f"did you mean {name}?")))
    assert opener("naïve-日本".encode()) == "naïve-日本"


def test_no_output_has_a_control_character(hostile: Process, tmp_path: Path) -> None:
    items = upload(3, processes=(hostile,))
    event = Event.now("warning", f"probe{EVIL}", f"of {EVIL}", f"disk {EVIL}", "begin")
    published: list[Item] = [*items, event]
    join = OwnerJoin(lambda: True)
    joined: list[Item] = [each for item in published for each in join.take(item)]
    names = ("flows", "conversations", "owners", "sockets", "events", "windows")
    for form in FORMATS:
        with Sink(str(tmp_path / form), form, [VIEWS[name] for name in names]) as sink:
            for each in joined:
                sink.write(each)
        for name in names:
            written = (tmp_path / form / f"{name}.{form}").read_text()
            assert_clean(written)
            if form == "jsonl":
                assert_clean("".join(strings(json.loads(line)) for line in written.splitlines()))
    with (tmp_path / "csv/owners.csv").open(newline="") as file:
        row = next(csv.DictReader(file))
    assert (row["process"], row["user"], row["pid"]) == (
        f"'{hostile.comm}",
        f"'{hostile.user}",
        "77",
    )

    parquet, _ = output(f"parquet:{tmp_path}/parquet")
    for each in joined:
        parquet.deliver(each, 0)
    parquet.close()
    for table in ("flows", "owners", "events"):
        found = read(tmp_path / "parquet" / table / "**/*.parquet")
        assert found
        assert_clean(
            "".join(value for row in found for value in row.values() if isinstance(value, str))
        )

    state = MetricState()
    for each in items:
        state.take(each)
    page, _ = exposition(OPEN_METRICS, state.samples)
    assert hostile.comm.encode() in page
    assert_clean(page)

    (owned, *_) = (each for each in joined if isinstance(each, OwnedFlows))
    records = messages(owned, IPFIX, owners=True).flows
    told = {text(record, 169, NTOP) for record in records if (NTOP, 169) in record}
    assert told == {hostile.comm}
    assert not any(b"\x1b[" in value for record in records for value in record.values())

    alerts = AlertFilter("own", "info", ())
    assert alerts.count(event)
    for alert in alerts.alerts(event):
        assert_clean(
            syslog_message(alert, 3).removeprefix(b"\xef\xbb\xbf").replace(b"\xef\xbb\xbf", b"")
        )
        assert_clean(journal_entry(alert, evidence=True))
        assert_clean(strings(json.loads(alert.json())))

    told_by_otlp = [
        *encoding.metrics_of(state.samples(), 1, 2),
        *map(encoding.alert_record, alerts.alerts(event)),
    ]
    said_by_otlp = "".join(strings(MessageToDict(each)) for each in told_by_otlp)
    assert hostile.comm in said_by_otlp
    assert event.text in said_by_otlp
    assert_clean(said_by_otlp)

    choice = choose(items, "dport:443")
    assert choice.conversation is not None
    said = "\n".join(lines(explain(choice.conversation, items)))
    assert hostile.comm in said
    assert_clean(said)


@pytest.mark.parametrize("formula", ["=cmd|'/C calc'!A0", "+1", "-1", "@SUM(1)", "\t=1", "'x"])
def test_a_formula_is_a_text_for_spreadsheets(formula: str) -> None:
    """The apostrophe can be taken away again: each text comes back; numbers stay numbers."""
    row = (formula, -1, -0.5, True, None, "a=b", "")
    (cells,) = csv.reader(io.StringIO(csv_rows([row]).decode(), newline=""))
    assert cells == [f"'{formula}", "-1", "-0.5", "true", "", "a=b", ""]
    assert cells[0].removeprefix("'") == formula
