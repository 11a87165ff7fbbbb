"""A new format is one entry: options, help, files, the API and the console's exports have it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BEGIN = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from app.outputs.formats import Format, register

def lines(rows):
    return b"".join(b"toy %d\\n" % len(row) for row in rows)

def whole(rows):
    return b"%d rows" % len(list(rows))

register(Format("toy", "application/x-toy", nested=False, encode=lines, row_end=b"\\n"))
register(Format("whole", "application/x-whole", nested=True, encode=whole))
"""
COMMAND = """
from app.cli.main import main
sys.argv[1:] = {arguments}
main()
"""
SERVE = """
import httpx
from app.api.server.listener import ApiListener
from app.api.sockets import Api
from tests.app.api.fake import FakePlane, config

def answers():
    path = "/v1/probes/counter/metrics"
    with httpx.Client(base_url="http://x", transport=httpx.HTTPTransport(uds=sys.argv[1])) as http:
        for media_type in ("application/x-toy", "text/html, application/x-whole;q=0.5", "*/*"):
            answer = http.get(path, headers={{"accept": media_type}})
            print(answer.headers["content-type"], answer.content[:8])
        print(http.get(path, params={{"format": "toy"}}).content[:4])
        described = http.get("/openapi.json").json()
        asked = described["paths"]["/v1/probes/{{name}}/export"]["post"]
        print("application/x-toy" in asked["responses"]["200"]["content"])
        print(asked["parameters"][-1]["schema"]["anyOf"][0]["enum"])
        print(described["components"]["schemas"]["ProbeConfig"]["properties"]["format"]["enum"])

plane = FakePlane()
plane.add(config("counter"))
plane.export("counter")
with ApiListener(plane, Api(version="1", socket=sys.argv[1])):
    {body}
"""


def done(code: str, *arguments: str) -> str:
    """Return the output of Python code after the formats were added."""
    command = (sys.executable, "-I", "-c", BEGIN + code, *arguments)
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def command(*arguments: str) -> str:
    return COMMAND.format(arguments=list(arguments))


@pytest.mark.parametrize("arguments", [("run", "--help"), ("probe", "export", "--help")])
def test_help_lists_it(arguments: tuple[str, ...]) -> None:
    shown = done(command(*arguments))
    assert "csv|jsonl|json|xml|toy" in shown
    assert ("|whole" in shown) is (arguments[0] == "probe"), "a run appends rows"


@pytest.mark.slow
def test_a_run_writes_its_files(tmp_path: Path) -> None:
    options = ("--headless", "--duration", "0.3", "--interval", "0.1", "--format", "toy")
    done(command("run", "-i", "lo", *options, "-o", str(tmp_path)))
    assert (tmp_path / "windows.toy").read_text().startswith("toy ")


@pytest.mark.slow
def test_the_api_answers_in_it_and_describes_it(tmp_path: Path) -> None:
    names = "['csv', 'jsonl', 'json', 'xml', 'toy', 'whole'"
    assert done(SERVE.format(body="answers()"), str(tmp_path / "s")).splitlines() == [
        "application/x-toy b'toy 11\\n\\n'",
        "application/x-whole b'1 rows1 '",
        "application/json b'{\"probe\"'",
        "b'toy '",
        "True",
        f"{names}, 'binary']",
        f"{names}]",
    ]


@pytest.mark.slow
def test_the_command_line_exports_a_probe_in_it(tmp_path: Path) -> None:
    socket = str(tmp_path / "s")
    arguments = ["probe", "export", "counter", "--format", "toy", "--connect", f"unix:{socket}"]
    body = f"from app.cli.main import main; sys.argv[1:] = {arguments}; main()"
    assert done(SERVE.format(body=body), socket).startswith("toy 11\n")


def test_the_console_exports_tables_in_it(tmp_path: Path) -> None:
    shown = done(
        """
from pathlib import Path
from app.commands.line import parse
from app.commands.registry import REGISTRY
from app.console.tables.export import TableContent, write_view
from app.tape.grammar import read
from app.tape.grammar import FORMS
from app.console.tables.sorted_table import ItemRows
from app.console.tables.spec import TableSpec
from widgets.table.rows import Column

print(".toy" in REGISTRY["view.export"].help, any(".toy" in help for _, help in FORMS))
print(read("Export flows x.toy", "x.tape", {})[1], bool(read("Export flows x.toi", "x", {})[1]))
column = Column("n", "N", 4)
rows = ItemRows.of(TableSpec("some", [column]), ((n, str(n)) for n in range(5000)))
view = TableContent(rows, ((0, column),), frozenset())
for suffix in ("toy", "whole"):
    path = Path(sys.argv[1], f"x.{suffix}")
    write_view(path, view)
    print(len(path.read_bytes().splitlines()), path.read_bytes()[-9:])
""",
        str(tmp_path),
    )
    assert shown.splitlines() == [
        "True True",
        "[] True",
        "5000 b' 1\\ntoy 1\\n'",
        "1 b'5000 rows'",
    ]
