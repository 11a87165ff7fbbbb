"""A column that a test adds to the flows table: everything about it stands in one entry."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.console.screens import TABLES
from app.exporters.ipfix.templates import FLOW_FIELDS, IPFIX, flow_template
from app.outputs.views import VIEWS
from probes.tables.flow_columns import FLOW_COLUMNS, FlowColumn
from tests.app.console.fake import desk, flow
from widgets.table.rows import Column


@pytest.fixture
def parity() -> Iterator[None]:
    """Whether a flow's number of packets is odd."""
    flows = TABLES["flows"]
    before = flows.columns
    flows.add(
        Column(
            "parity", "Parity", 6, unit="mod2", larger_first=True,
            help="Remainder of the packets by two.",
            values=lambda part: part["packets"] % 2,
            text=lambda remainder: "odd" if remainder else "even",
        )
    )  # fmt: skip
    yield
    flows.columns = before


@pytest.mark.usefixtures("parity")
async def test_it_is_on_the_screen_sorted_explained_chosen_and_exported(tmp_path: Path) -> None:
    async with desk(160, 40) as console:
        await console.feed(flow(1, 80), flow(2, 88), flow(3, 96))
        assert console.header[-1] == "Parity"
        assert [line.split()[-1] for line in console.lines[2:5]] == ["even", "odd", "even"]
        await console.app.action_command("flow.sort parity")
        await console.still()
        assert "Parity▼" in console.text
        assert console.sources[0] == 2
        await console.press("f1", *"j" * 5)
        assert "Remainder of the packets by two." in console.text
        await console.press("escape", "vertical_line")
        assert "[x]  Parity" in console.text
        await console.press("escape")
        await console.app.action_command("view.columns source parity")
        await console.app.action_command(f"view.export {tmp_path}/flows.csv")
        await console.app.workers.wait_for_complete()
        await console.still()
        rows = list(csv.DictReader((tmp_path / "flows.csv").open()))
        assert [row["parity_mod2"] for row in rows] == ["1", "0", "0"]
        await console.app.action_command("view.columns parit")
        await console.app.action_command("flow.sort parit")
        await console.still()
        assert all("did you mean parity?" in said for said in console.complaints[-2:])


@pytest.mark.usefixtures("parity")
def test_settings_and_tapes_know_its_name() -> None:
    from app.commands.line import parse
    from app.commands.model import check_columns

    check_columns("source parity")
    assert parse("flow.sort parity").values == ("parity",)


@pytest.mark.parametrize("column", FLOW_COLUMNS, ids=lambda column: column.name)
def test_an_entry_of_flows_is_on_the_screen_in_files_and_at_collectors(column: FlowColumn) -> None:
    assert column.name in TABLES["flows"].names
    assert column.name in VIEWS["flows"].header
    for table in (TABLES["conversations"].names, VIEWS["conversations"].header):
        assert (column.name in table) == column.is_key
    if column.element:
        fields = [element.name for element in flow_template(0, IPFIX).fields]
        assert fields.count(column.element[0]) == 1
        assert FLOW_FIELDS[column.element[0]] == column.name
