"""Whether every text can be read: the contrast of each tone on each ground that it is drawn on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.color import Color, ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.widget import Widget
from textual.widgets import Footer, Input, Label, OptionList

from app.config.model import Colors, Settings, Ui
from app.config.theme_colors import DARK, LIGHT
from app.console.terminal.console_terminal import CSS, THEMES, ConsoleTerminal
from tests.app.console.fake import desk, flow
from widgets.chart import Distribution, HistoryChart
from widgets.editor import CodeEditor
from widgets.status import StatusStrip
from widgets.table.table import VirtualTable
from widgets.terminal.compositor import DiffApp
from widgets.terminal.diff_writer import VALUES, DiffWriter, number_of
from widgets.terminal.driver import GroundKnown
from widgets.tones import Tone, tone_styles

LEAST = 4.5
"""WCAG 2, AA."""
LEAST_OF_16 = 2.8
"""Of the sixteen, no green has more on white and on yellow."""


class Sample(DiffApp[int]):
    """One of each thing that text is drawn on."""

    CSS = CSS

    def __init__(self, theme: str, ui: Ui | None = None) -> None:
        super().__init__()
        self.terminal = ConsoleTerminal(self, ui or Ui(), lambda: None)
        self.register_theme(THEMES[theme])
        self.theme = theme

    def compose(self) -> ComposeResult:
        yield StatusStrip()
        yield VirtualTable(())
        yield HistoryChart()
        yield Distribution()
        yield CodeEditor("int x;")
        yield OptionList("one", "two")
        yield Input()
        yield Label("plain")
        yield Footer()


def luminance(color: Color) -> float:
    parts = [part / 255 for part in color.get_truecolor()]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Color, other: Color) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def few(color: Color, theme: str) -> Color:
    """Return a color as a terminal with few colours shows it."""
    if "16" in theme:
        return color.downgrade(ColorSystem.STANDARD)
    number = number_of(*color.get_truecolor(), exact=False)
    assert number is not None
    return Color.from_rgb(*VALUES[number])


def colors(style: Style) -> tuple[Color, Color]:
    assert style.color is not None
    assert style.bgcolor is not None
    return style.color, style.bgcolor


def drawn(app: Sample) -> Iterator[tuple[str, Color, Color]]:
    """Drawable parts: name, colour and background."""
    names = ("table--rule", "status--separator", "option-list--separator", "text-area--placeholder")
    for widget in app.screen.query(Widget):
        for name in widget._get_component_classes():
            if not name.startswith(names):
                yield f"{type(widget).__name__} {name}", *colors(_style(widget, name))
        for tone, style in tone_styles(widget).items():
            yield f"{type(widget).__name__} {tone}", *colors(style)
        yield type(widget).__name__, *colors(widget.rich_style)
    for kind, name in ((Input, "input--selection"), (CodeEditor, "text-area--selection")):
        widget = app.screen.query_one(kind)
        assert _style(widget, name).bgcolor != widget.rich_style.bgcolor, "it must be seen"
    table = app.screen.query_one(VirtualTable)
    table.focus()
    for focused in (True, False):
        app.screen.set_focus(table if focused else None)
        app.stylesheet.update(app.screen)
        _, ground = colors(_style(table, "table--cursor"))
        for tone in Tone:
            color, own = colors(tone_styles(table)[tone])
            if tone not in (Tone.ACTIVE, Tone.IN_BAR, Tone.OUT_BAR):
                yield f"{tone} under the cursor, focused {focused}", color, ground
            assert own != ground, "the cursor must be seen"


def _style(widget: Widget, name: str) -> Style:
    return widget.get_component_rich_style(name)


@pytest.mark.parametrize("name", THEMES)
async def test_every_text_can_be_read(name: str) -> None:
    app = Sample(name)
    least = LEAST_OF_16 if "16" in name else LEAST
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        found = list(drawn(app))
    assert len(found) > 60
    for what, color, ground in found:
        # And what a terminal makes of them that has fewer.
        fewer = few(color, name), few(ground, name)
        assert contrast(color, ground) >= least, (what, color.name, ground.name)
        assert contrast(*fewer) >= least, (what, *fewer)


@pytest.mark.parametrize("name", THEMES)
async def test_tones_are_told_apart(name: str) -> None:
    app = Sample(name)
    async with app.run_test() as pilot:
        await pilot.pause()
        table = app.screen.query_one(VirtualTable)
        styles = [*tone_styles(table).values()]
    for mapped in (lambda color, _: color, few):
        looks = {
            (style.reverse, style.underline, *(mapped(c, name) for c in colors(style)))
            for style in styles
        }
        # The rates of one direction are of one colour among sixteen.
        assert len(looks) == len(Tone) - 4 * ("16" in name)


@pytest.mark.parametrize("of", ["in", "out"])
def test_each_direction_has_its_hue_in_256_colours_too(of: str) -> None:
    """Blue is more blue than red, orange the other way round, and neither is yellow."""
    for theme in (DARK, LIGHT):
        shown = theme.colors[of], theme.colors[f"{of}_bar"]
        for color in (*map(Color.parse, shown), *(few(Color.parse(c), "") for c in shown)):
            red, green, blue = color.get_truecolor()
            assert (blue > red) == (of == "in"), (theme.dark, color.name)
            assert abs(red - green) > 30, (theme.dark, color.name)


async def test_without_colours_cursors_are_reversed_and_what_ran_is_underlined() -> None:
    app = Sample("probedeck-dark", Ui(colors="none"))
    async with app.run_test() as pilot:
        table, answer = app.screen.query_one(VirtualTable), app.screen.query_one(Input)
        table.focus()
        await pilot.pause()
        assert _attributes(_style(table, "table--cursor")) == {"7"}
        assert _attributes(_style(answer, "input--cursor")) == {"7"}
        # A full bar in reverse would be an empty cell.
        for tone in (Tone.ACTIVE, Tone.IN_BAR, Tone.OUT_BAR):
            assert _attributes(tone_styles(table)[tone]) == {"4"}
        for widget in (table, app.screen.query_one(StatusStrip)):
            assert _attributes(tone_styles(widget)[Tone.WARN]) == {"1"}
            assert not _attributes(tone_styles(widget)[Tone.NORMAL])


def _attributes(style: Style) -> set[str]:
    """The attributes in which a terminal without colours is sent what has this style."""
    pen = DiffWriter(None, 80)
    pen.whole_line(0, [Segment("x", style)])
    return set(re.findall(r"[\[;](\d+)(?=[;m])", pen.finished().partition("x")[0]))


async def test_the_terminals_ground_is_followed_until_the_operator_chooses() -> None:
    async with desk() as console:
        assert console.app.theme == "probedeck-dark"
        console.app.post_message(GroundKnown(dark=False))
        await console.still()
        assert console.app.theme == "probedeck-light"
        await console.press("t")
        assert console.app.theme == "probedeck-dark"
        console.app.post_message(GroundKnown(dark=False))
        await console.still()
        assert console.app.theme == "probedeck-dark"


@pytest.mark.parametrize(
    ("ui", "theme"),
    [
        (Ui(theme="dark"), "probedeck-dark"),
        (Ui(theme="light"), "probedeck-light"),
        (Ui(theme="light", colors="16"), "probedeck-light-16"),
        (Ui(theme="light", colors="none"), "probedeck-dark"),
    ],
)
async def test_what_is_asked_for_stays(ui: Ui, theme: str) -> None:
    async with desk(settings=Settings(ui=ui)) as console:
        console.app.post_message(GroundKnown(dark=ui.theme == "light"))
        await console.still()
        assert console.app.theme == theme


async def test_a_theme_of_a_file_is_found_by_its_name_and_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "probedeck" / "themes" / "sea.toml"
    file.parent.mkdir(parents=True)
    file.write_text('base = "light"\naccent = "#00695c"\n')
    async with desk(settings=Settings(ui=Ui(theme="sea"))) as console:

        def look() -> tuple[bool, str]:
            theme = console.app.current_theme
            return theme.dark, theme.primary

        assert look() == (False, "#00695c")
        await console.press("t")
        assert look() == (True, DARK.colors["accent"])
        await console.press("t")
        assert look() == (False, "#00695c")
        file.write_text('base = "light"\naccent = "#4a148c"\n')
        await console.app.action_command("app.theme sea")
        assert look() == (False, "#4a148c")
        table = console.app.screen.query_one(VirtualTable)
        assert colors(_style(table, "table--sorted"))[0].name == "#4a148c"
        await console.press("colon", *"app.theme s", "tab")
        assert console.app.screen.query_one(Input).value == "app.theme sea"
        await console.press("escape")
        await console.app.action_command("app.theme see")
        await console.still()
        assert "there is no theme 'see'; did you mean sea?" in console.complaints


@pytest.mark.parametrize("colors", ["truecolor", "none"])
async def test_with_low_bandwidth_the_cursor_is_a_mark(colors: Colors) -> None:
    ui = Ui(low_bandwidth=True, colors=colors)
    async with desk(settings=Settings(ui=ui)) as console:
        await console.press("3")
        await console.feed(flow(1, 100), flow(2, 50))
        assert console.lines[2].startswith("> in") or console.lines[2].startswith(">in")
        await console.press("j")
        assert console.lines[2].startswith(" in")
        assert console.lines[3].startswith(">in")
        assert "slow link every 2 s" in console.strip
        # Updates that begin late are the machine's fault.
        console.app.terminal._rested(time.monotonic() - 1.0)
        console.app.show_status()
        await console.still()
        assert "busy machine every 2 s" in console.strip


async def test_a_link_that_turns_out_slow_is_drawn_on_as_if_that_had_been_said() -> None:
    async with desk(80, 24) as console:
        await console.feed(*(flow(number, 10) for number in range(1, 20)))
        assert console.lines[2].startswith(" in")
        link = console.app.link
        for count, seconds in ((10, 0.1), (4000, 4.0)):
            link.sent("?", count, 0.0)
            link.answered("?", seconds)
        await console.feed(flow(1, 10))
        assert console.lines[2].startswith(">in")
        await console.press("ctrl+p")
        await console.still()
        assert "flow.sort" in console.text
        assert "10.0.0." in console.lines[20]


@pytest.mark.parametrize("mode", ["paths", "flows"])
async def test_the_footer_is_never_cut_whatever_keys_are_called(mode: str) -> None:
    async with desk(80, 24, settings=Settings(ui=Ui(glyphs="ascii")), first=mode) as console:
        assert console.lines[-1].rstrip().endswith("q Quit")
        assert "? Keys" in console.lines[-1]
