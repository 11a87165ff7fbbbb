"""`probedeck sql`: tables by name, in three formats, and nothing beyond the directory."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli.subcommands.sql import sql
from app.exporters.files.query import asked
from app.outputs.sink import Sink
from app.outputs.views import VIEWS
from bpf.errors import UsageError
from tests.app.exporters.files.made import everything, output
from tests.app.outputs.test_owner_tables import flows


@pytest.fixture(scope="module", params=["parquet", "jsonl", "csv", "json"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tables, by an output or by `run -o DIR`."""
    place = tmp_path_factory.mktemp("tables")
    if request.param in ("csv", "json"):
        views = [view for view in VIEWS.values() if view.make is None]
        with Sink(str(place), request.param, views) as sink:
            for item in everything():
                sink.write(item)
        return place
    exporter, _ = output(f"{request.param}:{place}")
    for item in everything():
        exporter.deliver(item, 0)
    exporter.close()
    return place


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("parquet") / "tables"
    exporter, _ = output(f"parquet:{place}?tables=flows,windows,events")
    for item in everything():
        exporter.deliver(item, 0)
    exporter.close()
    return place


def rows(directory: Path, query: str) -> list[tuple[Any, ...]]:
    with asked(str(directory), query) as answer:
        return list(answer.rows)


def test_tables_of_every_kind_of_files_have_their_names(directory: Path) -> None:
    ((packets, size),) = rows(directory, "select sum(packets), sum(bytes) from flows")
    wanted = flows(1).rows
    assert (packets, size) == (wanted["packets"].sum(), wanted["bytes"].sum())
    ((name, value),) = rows(directory, "select source, value from events")
    assert (name, value) == ("disk", 2.0)
    # `window` is a word of SQL.
    query = """
        select f.packets, w.packets from flows f join windows w using ("window")
        where w.probe = 'flow' and coalesce(w.metric, '') = ''
    """
    assert len(rows(directory, query)) == len(wanted)


def test_the_queries_of_the_documents_run(directory: Path) -> None:
    text = Path("docs/sql.md").read_text()
    cells = re.findall(r"\| `(select [^|]*)` \|", text)
    # A query of a user probe's table, whose name has dots, needs that probe.
    lines = re.findall(r'^ +select .* from \w.*|(?<=sql tables ")[^"]+(?=")', text, re.M)
    assert (len(cells), len(lines)) == (5, 3)
    for query in (*cells, *lines):
        rows(directory, query)


@pytest.mark.parametrize(
    "query",
    [
        "select * from read_text('/etc/hostname')",
        "select * from glob('/etc/*')",
        "select * from '{outside}'",
        "select * from '{inside}/../outside.csv'",
        "select * from 'https://192.0.2.1/x.parquet'",
    ],
)
def test_no_other_file_and_no_network_is_in_reach(parquet: Path, query: str) -> None:
    outside = parquet.parent / "outside.csv"
    outside.write_text("a\n1\n")
    with pytest.raises(UsageError, match="Permission Error"):
        rows(parquet, query.format(inside=parquet, outside=outside))


@pytest.mark.parametrize(
    "query",
    [
        "copy flows to '{inside}/x.csv'", "drop view flows", "create table t as select 1",
        "set threads = 1", "attach '{inside}/x.db'", "install httpfs", "select 1; select 2",
        "explain analyze copy flows to '{inside}/x.csv'", "", "export database '{inside}/x'",
        "pragma database_list", "call pragma_version()", "checkpoint",
    ],
)  # fmt: skip
def test_only_one_select_runs(parquet: Path, query: str) -> None:
    before = sorted(parquet.rglob("*"))
    with pytest.raises(UsageError, match="a query is one SELECT"):
        rows(parquet, query.format(inside=parquet))
    assert sorted(parquet.rglob("*")) == before


def test_times_with_a_zone_are_utc(parquet: Path) -> None:
    query = "select '2026-01-31T12:00:00+02:00'::timestamptz as a, 1 as b, 2 as b"
    with asked(str(parquet), query) as answer:
        (row,) = answer.rows
    assert row[0].isoformat() == "2026-01-31T10:00:00"
    assert len(answer.header) == len(row) == 3


def lines_of(result: Any) -> list[str]:
    assert result.exit_code == 0, result.output
    return str(result.output).splitlines()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(sql, arguments)


def test_a_foreign_file_keeps_nobody_from_the_tables(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "notes.json").write_text("no JSON")
    (tmp_path / "broken.parquet").write_bytes(b"torn")
    assert rows(tmp_path, "select text from events") == [("a",)]
    with pytest.raises(UsageError, match="broken does not exist"):
        rows(tmp_path, "select * from broken")


def test_formats(parquet: Path) -> None:
    query = "select time, value, severity = 'info' as quiet, null as none from events"
    assert lines_of(run(str(parquet), query)) == [
        "time                  value  quiet  none",
        "2026-01-01T00:00:00Z    2.0  False",
    ]
    assert lines_of(run(str(parquet), query, "-f", "csv")) == [
        "time,value,quiet,none", "2026-01-01T00:00:00Z,2.0,false,",
    ]  # fmt: skip
    (line,) = lines_of(run(str(parquet), query, "-f", "jsonl"))
    row = {"time": "2026-01-01T00:00:00Z", "value": 2.0, "quiet": False, "none": None}
    assert json.loads(line) == row
    assert json.loads(run(str(parquet), query, "-f", "json").output) == [row]


def test_values_that_json_lacks(parquet: Path) -> None:
    query = "select 'nan'::double a, [1, 2] b, {'x': date '2026-01-01'} c, 2::hugeint ** 70 d"
    found = json.loads(run(str(parquet), query, "-f", "jsonl").output)
    assert found["a"] is None
    assert found["b"] == [1, 2]
    assert found["c"] == {"x": "2026-01-01"}
    assert found["d"] == pytest.approx(2**70)


def test_no_text_moves_the_cursor(parquet: Path) -> None:
    assert lines_of(run(str(parquet), "select chr(27) || '[2J' as a")) == ["a", "?[2J"]


def test_a_missing_directory_or_query_is_named(parquet: Path) -> None:
    for arguments in ((str(parquet),), (str(parquet), "select", "1"), ("--store", "http://c:1")):
        found = run(*arguments).exception
        assert isinstance(found, UsageError)
        assert "give a" in found.message


def mistakes(parquet: Path) -> Iterator[tuple[str, str, str]]:
    yield str(parquet), "select nope from flows", 'Binder Error: .*"nope" not found'
    yield str(parquet), "select * from flow", "flow does not exist"
    yield str(parquet), "selec 1", "syntax error"
    yield str(parquet / "none"), "select 1", "no directory "
    yield str(parquet / "flows"), "select 1 / 'a'", "Conversion Error"


def test_mistakes_are_one_line(
    parquet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for directory, query, words in mistakes(parquet):
        with pytest.raises(UsageError, match=words) as found:
            rows(Path(directory), query)
        assert "\n" not in str(found.value)
    with pytest.raises(UsageError, match="no tables in"):
        rows(tmp_path, "select 1")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(UsageError, match="probedeck sql needs DuckDB") as found:
        rows(parquet, "select 1")
    with_pip = f"{sys.executable} -m pip"
    pip = with_pip if find_spec("pip") else f"pip --python {sys.executable}"
    assert found.value.hint == f"{pip} install 'duckdb>=2,<3'"
