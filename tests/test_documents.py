"""The documents: links, paths, options and columns that they name exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import pytest

from app.cli.main import cli
from app.config.load import load
from app.exporters.kinds import parse as parse_output
from app.fleet.hosts import load as load_fleet
from app.outputs.views import VIEWS
from app.run.monitor import policies_of
from app.run.options import SECTIONS
from probes.control.budget import Resource
from probes.control.budget_keeper import STEPS
from probes.flow.filter import FlowFilter
from probes.reports import OutputConfig
from tests import facts

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("examples/*.md"))
    if path.name != "CHANGELOG.md"
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"^    .*\n", re.MULTILINE)
_PATH = re.compile(r"`((?:[\w.*-]+/)+[\w.*-]*|[\w-]+\.(?:py|c|h|toml))`")
_INVENTED = {
    "large.c",
    "large.toml",
    "ports.c",
    "ports.toml",
    "config.toml",
    "bpf_core_read.h",
    "bpf_tracing.h",
}
"""Files that a reader would write, or that do not exist."""
_COMMAND = re.compile(r"^    (?:sudo )?(?:\./)?probedeck ((?!--)(?:.*\\\n)*.+)", re.MULTILINE)
_SNIPPET = re.compile(r"^(?:    .+\n)+|(?<=^```toml\n)[^`]+", re.MULTILINE)
_TOML = re.compile(r"(#.*\n)*(\[|\w+ = )")
_RUN = {
    "config init", "config show", "config validate", "config path", "man", "policy check",
    "tape list", "tape states",
}  # fmt: skip
"""Commands that the test runs as the documents have them."""
_NOT_RUN = {
    "run": "watches an interface of the reader until Ctrl-C; tests/app/run runs it",
    "lab": "shows a console; tests/app/lab runs it",
    "tour": "shows a console; tests/app/console runs it",
    "console": "shows a console of a controller; tests/app/console runs it",
    "fleet": "shows a console of the reader's hosts; tests/app/console runs it",
    "explain": "waits for the reader's connections; tests/app/explain runs it",
    "trace": "sends packets to hosts of the Internet; tests/app/run runs it",
    "segment": "needs two hosts; tests/app/fleet runs it",
    "replay": "shows a console; tests/app/console runs it",
    "record": "needs a recording of the reader; tests/app/recording runs it",
    "open": "needs a capture of the reader; tests/app/recording runs it",
    "serve --record": "serves until a signal; tests/app/recording records",
    "sql": "needs tables of the reader, and an extra package; tests/app/cli runs it",
    "doctor": "judges the reader's interface; tests/app/doctor runs it",
    "probe ": "needs a controller and ports.toml; tests/app/cli runs it",
    "policy add": "needs a controller; tests/app/cli runs it",
    "policy list": "needs a controller",
    "policy replace": "needs a controller",
    "policy activate": "needs a controller",
    "policy remove": "needs a controller",
    "policy test": "needs a capture of the reader; tests/app/cli runs it",
    "tape check": "needs a tape of the reader; tests/app/tape runs it",
    "test": "runs the tests",
    "bench": "measures for minutes; tests/test_benches.py runs it",
}
"""Why the test only parses the others."""
_READERS: dict[str, Callable[[str], object]] = {
    "--output": lambda text: parse_output(OutputConfig(text)),
    "--capture": FlowFilter.parse,
    "--policy": lambda text: policies_of("", [text], []),
}
"""The functions that read values of options. Each raises UsageError."""
each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return frozenset(title.replace(" ", "-") for title in plain)


@cache
def names() -> frozenset[str]:
    """Return the names of all files of the repository."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    files = listed.stdout.split() or map(str, ROOT.glob("[!.]*/**/*"))
    return frozenset(Path(file).name for file in files)


@each_document
def test_every_link_has_a_target(path: Path) -> None:
    for link in _LINK.findall(_CODE.sub("", path.read_text())):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@each_document
def test_every_path_exists(path: Path) -> None:
    for name in _PATH.findall(path.read_text()):
        top, slash, _ = name.partition("/")
        if not slash:
            assert name in names() | _INVENTED, name
        elif (ROOT / top).is_dir() and top != "dist":  # is built
            assert any(ROOT.glob(name.rstrip("/"))), name
    for name in re.findall(r"\bbench\.(\w+)", path.read_text()):
        module = ROOT / "bench" / name
        assert module.with_suffix(".py").is_file() or (module / "__main__.py").is_file(), name


def test_kernels_has_what_the_kernels_said() -> None:
    text = facts.DOCUMENT.read_text()
    assert facts.document(text, json.loads(facts.RESULTS.read_text())) == text


def test_every_promise_of_security_has_its_test() -> None:
    text = (ROOT / "SECURITY.md").read_text()
    table = text.partition("| promise | test |")[2].partition("\n\n")[0]
    promises = table.splitlines()[2:]
    named = re.findall(r"`(tests/[\w/]+\.py)` `(test_\w+)` \|$", table, re.MULTILINE)
    assert len(named) == len(promises)
    assert [each for each in named if f"def {each[1]}(" not in (ROOT / each[0]).read_text()] == []


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_class_exists(name: str) -> None:
    sources = (
        path for top in ("app", "bpf", "probes", "widgets") for path in ROOT.glob(f"{top}/**/*.py")
    )
    classes = {
        found
        for path in sources
        for found in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE)
    }
    assert classes >= set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)`", (ROOT / name).read_text()))


def commands_of(path: Path) -> Iterator[list[str]]:
    """Yield the words of each command of probedeck in a document."""
    for line in _COMMAND.findall(path.read_text()):
        words = shlex.split(line.replace("\\\n", " "), comments=True)
        yield words[: next((i for i, word in enumerate(words) if word in "|&"), None)]


def parsed(words: list[str]) -> click.Context:
    """Parse a command as the program does; raises click.UsageError and ProbedeckError."""
    context = cli.make_context("probedeck", words)
    while isinstance(context.command, click.Group):
        name, command, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert command
        context = command.make_context(name, rest, parent=context)
    return context


@each_document
def test_every_command_parses(path: Path) -> None:
    for words in commands_of(path):
        if words[0] == "test":
            continue  # by the launcher: its arguments are pytest's
        parsed(list(words))
        mine = words[: words.index("--")] if "--" in words else words
        for option, value in pairwise(mine):
            if option in _READERS and value != "URL":
                _READERS[option](value)


@each_document
def test_every_block_of_commands_is_valid_shell(path: Path) -> None:
    for block in _SNIPPET.findall(path.read_text()):
        if _COMMAND.search(block):
            text = textwrap.dedent(block)
            checked = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
            assert checked.returncode == 0, checked.stderr


@each_document
def test_a_command_that_ends_by_itself_runs_as_pasted(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for words in commands_of(path):
        place = " ".join(words[:2])
        assert (place in _RUN) != any(place.startswith(each) for each in _NOT_RUN), place
        if place in _RUN and "--cost" not in words:
            assert not cli(words, standalone_mode=False)
            assert capsys.readouterr().out


@each_document
def test_every_toml_can_be_read(path: Path, tmp_path: Path) -> None:
    """Settings and fleets are checked whole, with the keys and values that exist."""
    for snippet in _SNIPPET.findall(path.read_text()):
        text = textwrap.dedent(snippet)
        if not _TOML.match(text):
            continue
        keys = tomllib.loads(text).keys()
        file = tmp_path / "c.toml"
        file.write_text(text)
        file.chmod(0o600)
        if "hosts" in keys:
            # Beside the file, as the document says.
            (tmp_path / "web1.token").write_text("0123456789abcdef")
            (tmp_path / "web1.token").chmod(0o600)
            assert load_fleet(str(file)).hosts
        elif keys <= SECTIONS.keys() | {"keys", "macros", "columns", "filters", "outputs"}:
            # Tapes and filters of the reader are not there.
            wrong = [str(each) for each in load(str(file), SECTIONS, {}).problems]
            assert not wrong, wrong


def test_the_index_has_every_page() -> None:
    index = set(_LINK.findall((DOCS / "README.md").read_text()))
    assert index >= {page.name for page in DOCS.glob("*.md")} - {"README.md"}


def test_every_column_of_a_table_is_documented() -> None:
    text = (DOCS / "tables.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE))
    assert rows.keys() == VIEWS.keys()
    for name, view in VIEWS.items():
        columns = [column.name for column in view.columns]
        if name == "triggers":  # it ends with the columns of `metrics`
            columns = columns[: columns.index("packets")]
            rows[name] = rows[name].partition(", then ")[0]
        assert rows[name].split(", ") == columns


def test_the_steps_of_the_budget_are_documented() -> None:
    text = (DOCS / "budget.md").read_text()
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", text, re.MULTILINE)
    both = set(Resource)
    assert found == [
        (each.name, each.down, "both" if each.relieves == both else Resource.USER.value)
        for each in STEPS
    ]


def test_every_field_of_a_packet_is_documented() -> None:
    text = (ROOT / "bpf/include/packet.h").read_text()
    body = re.search(r"struct packet \{(.*?)\n\};", text, re.DOTALL)
    assert body is not None
    fields = set(re.findall(r"u64 (\w+);", body[1]))
    macros = set(re.findall(r"#define (\w+)\(key\)", text)) - {"TUNNEL_ID", "TUNNEL_KIND"}
    results = set(re.findall(r"\bPARSED\w*", text))
    page = (DOCS / "probes.md").read_text()
    assert {n for n in fields | macros | results if not re.search(rf"\b{n}\b", page)} == set()
