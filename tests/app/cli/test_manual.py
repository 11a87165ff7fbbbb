"""The manual page and the shell's completion."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app import VERSION
from app.cli import manual_page as manual
from app.cli.main import ASKED, SHELLS, cli
from app.commands.registry import REGISTRY
from app.tape.grammar import SETTINGS, STATEMENTS
from app.tape.line import MODIFIERS, VERBS
from probes.tables.field_types import FIELD_TYPES, SLOT_TYPES
from tests.support.runs import deck_here


def test_the_page_has_every_option_and_every_command() -> None:
    page = manual.page(cli, VERSION)
    plain = page.replace(r"\-", "-").replace(r"\(aq", "'").replace(r"\e", "\\")
    for words in ("--interval SECONDS", "--policies FILE", "probe rollback", "EXIT STATUS"):
        assert words in plain
    verbs = set(re.findall(r"\w+", plain.partition("TAPES")[2]))
    assert verbs.issuperset((*STATEMENTS, *MODIFIERS, *SETTINGS))
    assert verbs.issuperset(verb for verb in VERBS if not re.match(r"F\d", verb))
    for command in REGISTRY.values():
        assert command.usage in plain, command.name
    # A line of text that begins with a dot or a quote would be taken for a request.
    requests = {"TH", "SH", "SS", "TP", "PP", "B", "I", "BR", "nf", "fi"}
    for line in page.splitlines():
        if re.match(r"[.']", line):
            assert line[1:].split()[0] in requests, line


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_gets_its_completion(shell: str) -> None:
    code, out, _ = deck_here("completion", shell)
    assert code == 0
    assert f"{ASKED}={shell}_complete" in out


def test_the_manual_and_the_documents_tell_every_type_of_a_field() -> None:
    """S1.10: an operator need not provoke an error to learn them."""
    page = manual.page(cli, VERSION).replace(r"\-", "-")
    probes = Path(__file__).parents[3].joinpath("docs/probes.md").read_text()
    for name, about in {**SLOT_TYPES, **{n: t.about for n, t in FIELD_TYPES.items()}}.items():
        assert f".B {name}\n" in page
        assert f"`{name}`" in probes
        assert about in page


def test_completion_knows_commands_and_options() -> None:
    asked = {ASKED: "bash_complete", "COMP_WORDS": "probedeck run --int", "COMP_CWORD": "2"}
    _, out, _ = deck_here(**asked)
    assert out.split() == ["plain,--interface", "plain,--interval"]


@pytest.mark.parametrize("words", ["run --probe exam", "policy check exam", "run -o exam"])
def test_the_shell_completes_names_of_files(words: str) -> None:
    count = str(len(words.split()))
    asked = {ASKED: "bash_complete", "COMP_WORDS": f"probedeck {words}", "COMP_CWORD": count}
    assert deck_here(**asked)[1] == "file,exam\n"
