"""Detection of the terminal's features, and a console on a slow terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from app.config.model import Ui
from app.console.terminal.capabilities import prepare, resolved
from tests.app.console.fake import desk
from tests.support.console.terminal import Terminal

UTF8 = {"LANG": "de_DE.UTF-8", "TERM": "xterm-256color"}
XTERM = {"TERM": "xterm-256color"}
CONSOLE = (sys.executable, "-I", "-m", "tests.support.console.workload", "flows")


@pytest.mark.parametrize(
    ("environment", "glyphs"),
    [
        (UTF8, "braille"),
        ({**UTF8, "LC_ALL": "C"}, "ascii"),
        ({**UTF8, "LC_CTYPE": "de_DE"}, "ascii"),
        ({**UTF8, "LC_ALL": "", "LC_CTYPE": "", "LANG": "en_US.utf8"}, "braille"),
        ({**UTF8, "LANG": "POSIX"}, "ascii"),
        (XTERM, "braille"),
        ({**UTF8, "TERM": "linux"}, "block"),
        ({**UTF8, "TERM": "dumb"}, "block"),
    ],
)
def test_glyphs_are_what_locale_and_terminal_have(environment: dict[str, str], glyphs: str) -> None:
    assert resolved(Ui(), environment).glyphs == glyphs
    assert resolved(Ui(glyphs="block"), environment).glyphs == "block"


@pytest.mark.parametrize(
    ("environment", "colors"),
    [
        (XTERM, "256"),
        ({**XTERM, "COLORTERM": "truecolor"}, "truecolor"),
        ({**XTERM, "COLORTERM": "24bit"}, "truecolor"),
        ({"TERM": "xterm"}, "16"),
        ({"TERM": "linux"}, "16"),
        ({"TERM": "xterm-kitty"}, "truecolor"),
        ({"TERM": "xterm-direct"}, "truecolor"),
        ({"TERM": "dumb"}, "none"),
        ({}, "none"),
        ({**XTERM, "NO_COLOR": "1", "COLORTERM": "truecolor"}, "none"),
        ({**XTERM, "NO_COLOR": ""}, "256"),
        ({**XTERM, "TEXTUAL_COLOR_SYSTEM": "standard"}, "16"),
        ({**XTERM, "TEXTUAL_COLOR_SYSTEM": "auto"}, "256"),
    ],
)
def test_colours_are_what_the_environment_says(environment: dict[str, str], colors: str) -> None:
    assert resolved(Ui(), environment).colors == colors
    assert resolved(Ui(colors="16"), environment).colors == "16"


@pytest.mark.parametrize(
    ("said", "theme"),
    [("15;0", "dark"), ("0;15", "light"), ("0;default;15", "light"), ("12;8", "dark"),
     ("", "auto"), ("default;default", "auto")],
)  # fmt: skip
def test_colorfgbg_tells_the_theme(said: str, theme: str) -> None:
    assert resolved(Ui(), {"COLORFGBG": said}).theme == theme
    assert resolved(Ui(theme="light"), {"COLORFGBG": said}).theme == "light"


def test_low_bandwidth_takes_what_needs_few_bytes_unless_more_was_asked_for() -> None:
    few = resolved(Ui(low_bandwidth=True), {**UTF8, "COLORTERM": "truecolor"})
    assert (few.glyphs, few.colors, few.mouse) == ("block", "16", False)
    asked = Ui(low_bandwidth=True, glyphs="braille", colors="256")
    asked = resolved(asked, UTF8)
    assert (asked.glyphs, asked.colors, asked.mouse) == ("braille", "256", False)
    assert resolved(Ui(low_bandwidth=True), {**UTF8, "NO_COLOR": "1"}).colors == "none"


@pytest.mark.parametrize("term", ["xterm", "linux", "dumb", "xterm-256color", ""])
def test_pictures_without_a_terminal_are_the_same_for_every_term(
    term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {"TERM": term, "COLORFGBG": "0;15", "LANG": "C.UTF-8"})
    ui = prepare(Ui(), drawn=True)
    assert (ui.colors, ui.glyphs, ui.theme) == ("truecolor", "braille", "auto")


@pytest.mark.parametrize(
    ("environment", "ui", "expected"),
    [
        ({"NO_COLOR": "1"}, Ui(), {"NO_COLOR": None}),
        ({"COLORTERM": ""}, Ui(), {"TEXTUAL_COLOR_SYSTEM": "256"}),
        ({"LANG": "C"}, Ui(low_bandwidth=True),
         {"TEXTUAL_ANIMATIONS": "none", "TEXTUAL_COLOR_SYSTEM": "standard"}),
    ],
)  # fmt: skip
def test_textual_is_told_before_it_is_imported(
    environment: dict[str, str], ui: Ui, expected: dict[str, str | None]
) -> None:
    program = (
        "import json, os, sys\n"
        "from app.console.terminal.capabilities import prepare\n"
        "from app.config.model import Ui\n"
        f"ui = prepare(Ui(**json.loads({json.dumps(json.dumps(asdict(ui)))})))\n"
        "assert not {'textual', 'rich', 'widgets', 'numpy'} & set(sys.modules)\n"
        "print(json.dumps([dict(os.environ), ui.glyphs]))\n"
    )
    run = subprocess.run(
        (sys.executable, "-c", program), env={**XTERM, **environment},
        capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4],
    )  # fmt: skip
    found, glyphs = json.loads(run.stdout)
    assert {name: found.get(name) for name in expected} == expected
    # Python makes a UTF-8 locale of the C locale for itself; the terminal knows nothing of that.
    assert (glyphs == "ascii") == (environment.get("LANG") == "C")


KEYS = (
    ("6", "Severity"),
    ("3", "Remote"),
    ("?", "Keys of"),
    ("\x1b", lambda text: "Keys of" not in text),
)
"""Keys, and the text on the screen soon after each."""


@pytest.mark.slow
@pytest.mark.timing
def test_a_console_at_9600_baud_answers_keys_and_falls_behind_with_nothing() -> None:
    with Terminal(CONSOLE, columns=80, rows=24, rate=960) as terminal:
        terminal.wait("LIVE", 15)
        terminal.wait(r"slow link every \d s", 15)
        for _ in range(3):
            # The machine may be slow for once; what is queued for the link stays.
            sizes = {}
            for key, shown in KEYS:
                started = terminal.bytes
                terminal.latency(key, shown)
                sizes[key] = terminal.bytes - started
            if max(sizes.values()) < 2 * 960:
                break
        assert max(sizes.values()) < 2 * 960, "the link takes two seconds for them"
        started = terminal.bytes
        terminal.send("q")
        assert terminal.wait_exit(5) == 0
        assert terminal.bytes - started < 1000, "what was still on its way"


@pytest.mark.slow
@pytest.mark.timing
def test_far_is_not_slow() -> None:
    with Terminal(CONSOLE, columns=80, rows=24, delay=0.3) as terminal:
        terminal.wait("Remote", 15)
        least = dict.fromkeys(dict(KEYS), 5.0)
        for _ in range(3):  # the machine may be slow for once
            for key, shown in KEYS:
                least[key] = min(least[key], terminal.latency(key, shown))
            if max(least.values()) < 1.0:
                break
        assert max(least.values()) < 1.0, least
        assert "slow link" not in terminal.screen()
        terminal.send("q")
        assert terminal.wait_exit(5) == 0


@pytest.mark.parametrize(
    ("script", "has"),
    [
        ("$1; true", "False"),
        ("set -m; $1; true", "True"),
        ("set -m; sh -c '$1; true'; true", "True"),
    ],
)
def test_only_a_shell_with_job_control_can_have_us_go_on(script: str, has: str) -> None:
    code = "from app.console.terminal.capabilities import has_shell; print(has_shell())"
    run = f'{sys.executable} -I -c "{code}"'
    done = subprocess.run(
        ["bash", "-c", script.replace("$1", run)],
        start_new_session=True, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == has


async def test_a_console_that_nothing_would_have_go_on_does_not_stop() -> None:
    async with desk(80, 24) as console:
        await console.press("ctrl+z")
        assert console.complaints == ["there is no shell to go back to"]
