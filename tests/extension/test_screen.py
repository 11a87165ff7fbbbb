"""A screen that a test adds: one entry, and everything else follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widget import Widget

from app.commands.registry import REGISTRY, add_screen
from app.config.model import Settings
from app.console.screen import ConsoleScreen
from app.console.screens import SCREENS, TABLES
from app.console.screens.info import ScreenInfo
from app.console.tables.sorted_table import ItemRows, SortedTable
from app.console.tables.spec import TableSpec
from app.tape.named_state import NamedState, StateKind, StateValue
from tests.app.console.fake import becomes, desk
from widgets.table.rows import Column

FRUITS: TableSpec[str] = TableSpec(
    "fruits",
    (
        Column("fruit", "Fruit", 10, help="Name of the fruit."),
        Column("letters", "Letters", 7, "right", larger_first=True, help="Letters of the name.",
            cells=lambda fruit: str(len(fruit)), written=len),
    ),
    sort="letters",
)  # fmt: skip


class OrchardScreen(ConsoleScreen):
    """Fruits in a table."""

    MODE = "orchard"

    def compose_body(self) -> list[Widget]:
        return [SortedTable(FRUITS)]

    def show(self) -> None:
        self.query_one(SortedTable).fill(
            ItemRows.of(FRUITS, ((fruit, fruit) for fruit in ("fig", "pear", "apple")))
        )

    def states(self) -> dict[str, StateValue]:
        return {"orchard.sort": self.query_one(SortedTable).sort}


@pytest.fixture
def orchard() -> Iterator[None]:
    add_screen(
        ScreenInfo(
            "orchard", "7", "Orchard", f"{__name__}:OrchardScreen", tables=(FRUITS,),
            states=(NamedState("orchard.sort", StateKind.TEXT, "column of the order"),),
            signs=("Of fruits", (("●", "A round fruit"),)),
        )
    )  # fmt: skip
    yield
    del SCREENS["orchard"], TABLES["fruits"], REGISTRY["view.orchard"]


@pytest.mark.usefixtures("orchard")
async def test_its_key_turns_to_it_and_help_knows_it() -> None:
    async with desk(
        120, 40, settings=Settings(columns={"fruits": ("letters", "fruit")})
    ) as console:
        assert "7" in console.lines[-1].split()
        await console.press("7")
        assert console.header == ["Letters▼", "Fruit"]
        assert [line.split() for line in console.lines[2:5]] == [
            ["5", "apple"], ["4", "pear"], ["3", "fig"],
        ]  # fmt: skip
        await console.press("f1")
        assert "Letters of the name." in console.text
        await console.press("escape", "question_mark")
        for words in ("Keys of Orchard", "A round fruit"):
            assert words in console.text
        await console.press("j")
        assert "view.orchard" in console.text
        await console.press("escape")
        await console.app.action_command("view.columns frut")
        await console.still()
        assert "did you mean fruit?" in console.complaints[-1]


@pytest.mark.usefixtures("orchard")
async def test_a_tape_turns_to_it_and_looks_at_its_state(tmp_path: Path) -> None:
    tape = tmp_path / "visit.tape"
    tape.write_text('view.orchard\nExpect view == "orchard"\nExpect orchard.sort == "letters"\n')
    async with desk() as console:
        await console.app.action_command(f"macro.play {tape}")
        await becomes(console, lambda: bool(console.complaints))
        assert console.complaints == ["visit is done"]
        assert "apple" in console.text
