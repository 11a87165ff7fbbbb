"""Order and columns of every table: keys, titles, commands, settings and the chooser."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.config.model import Settings
from app.console.screens import TABLES
from app.console.tables.sorted_table import SortedTable
from app.console.tables.spec import columns
from bpf.errors import UsageError
from probes.monitor.state import PolicyState
from probes.snapshot import Event
from tests.app.console.fake import Desk, becomes, desk, flow
from tests.app.console.fake_paths import LAB, SECOND_NS, FakeHop, FakePath, table
from tests.app.console.fake_plane import FakePlane, config
from tests.app.console.fake_triggers import FakeMonitor, Said, monitor, policy
from widgets.table.rows import Value


@pytest.mark.parametrize("name", TABLES)
def test_the_names_that_an_operator_may_use_are_those_of_the_table(name: str) -> None:
    table = TABLES[name]
    made = columns(table)
    assert tuple(column.id for column in made) == table.names
    assert table.sort in ("", *table.sortable)
    assert len({column.field for column in made}) == len(set(table.names)) == len(made)
    assert all(column.help for column in made)


def deck_table(console: Desk, name: str) -> SortedTable:
    return next(t for t in console.app.screen.query(SortedTable) if t.spec.name == name)


def column(console: Desk, name: str, column: str) -> Sequence[Value]:
    """The values of a column, from the top."""
    shown = deck_table(console, name)
    place = next(n for n, found in enumerate(shown.columns) if found.id == column)
    values = list(shown.arranged.values(place))
    cells = [shown.source.cells(index) for index in range(shown.source.rows)]
    # The drawn rows are the sorted ones, and each cell has a value.
    assert len(cells) == len(values) == shown.arranged.rows
    for one in cells:
        assert len(one) == len(shown.columns)
    return values


async def do(console: Desk, line: str) -> None:
    await console.app.action_command(line)
    await console.still()


async def test_hops_and_destinations_are_sorted_and_flows_stay_below_their_destination() -> None:
    plane = FakePlane()
    near = FakePath(LAB[:2], destination="10.9.9.9", end=FakeHop(2.0, ("10.9.9.9",)))
    end = FakeHop(20.0, ("10.94.6.2",))
    slow = FakeHop(30.0, ("10.94.6.2",))
    other = FakePath(LAB, flow=near.flow._replace(source_port=40002), end=slow)
    async with desk(120, 40, plane) as console:
        now = 10 * SECOND_NS
        for path in (FakePath(LAB, end=end), other, near):
            plane.publish(table(path.second(now), now + SECOND_NS - 1))
        await console.press("2")
        await console.still()
        # Their first order depends on hashes with a secret.
        await console.press(*["n"] * ("2 flows" not in console.lines[2]), "f")
        assert "Hop▲" in console.text
        await becomes(console, lambda: column(console, "hops", "hop")[:3] == [1, 2, 3])
        await do(console, "path.sort loss")
        assert "Loss▼" in console.text
        # Silent hops lose all probes.
        assert column(console, "hops", "hop")[:2] == [4, 5]
        await do(console, "path.reverse")
        assert column(console, "hops", "loss")[0] == 0
        # The column's name chooses the table; if both have it, the focus does.
        await do(console, "path.sort rtt")
        paths, rtts = (column(console, "destinations", name) for name in ("path", "rtt"))
        assert [str(path).split()[0] for path in paths] == ["10.94.6.2", "tcp", "tcp", "10.9.9.9"]
        assert rtts[1] > rtts[2]  # type: ignore[operator]
        await console.press("shift+tab", "S")
        again = column(console, "destinations", "path")
        assert again == [paths[3], paths[0], paths[2], paths[1]]


async def test_policies_and_applications_are_sorted_by_what_they_mean() -> None:
    plane, source = FakePlane(), FakeMonitor()
    states = {"a": PolicyState.ARMED, "b": PolicyState.OFF, "c": PolicyState.ACTIVE}
    infos = [policy(f"{n}: flows > 9 -> dns", s, selected=ord(n)) for n, s in states.items()]
    plane.monitor_info = monitor(*infos)
    says = {"a": Said(9, 10), "b": Said(500, 1000, error=0.1), "c": Said(1, 10, PolicyState.ACTIVE)}
    async with desk(120, 40, plane) as console:
        for made in source.window(says):
            plane.publish(made)
        await console.press("4")
        await console.still()
        await do(console, "trigger.sort state")
        assert column(console, "policies", "policy") == ["c", "a", "b"]
        # By how near they are to their threshold.
        await do(console, "trigger.sort value")
        assert column(console, "policies", "policy") == ["a", "b", "c"]
        await do(console, "trigger.sort selected")
        assert column(console, "policies", "selected") == [99, 98, 97]
        assert "Matched▼" in console.text
        await do(console, "trigger.sort ns")
        ns = column(console, "applications", "ns")
        assert ns == sorted(ns, reverse=True)  # type: ignore[type-var]
        await do(console, "trigger.sort line")
        assert "there is no column 'line'" in console.complaints[-1]


async def test_programs_and_events_are_sorted_by_the_same_keys() -> None:
    plane = FakePlane(config("hello"), config("alpha", egress=False))
    async with desk(120, 40, plane) as console:
        for severity in ("info", "error", "warning"):
            plane.publish(Event(len(severity) * 10**9, severity, "x", f"this {severity}"))
        await console.press("6")
        assert "Time (UTC)▼" in console.text
        assert column(console, "events", "severity") == ["warning", "error", "info"]
        await console.press("s")
        assert column(console, "events", "severity") == ["error", "warning", "info"]
        await console.press("S")
        assert column(console, "events", "severity") == ["info", "warning", "error"]
        assert column(console, "events", "time")[0] == "1970-01-01T00:00:04.000000000Z"
        await console.press("5")
        await console.still()
        assert column(console, "programs", "probe") == ["hello", "hello", "alpha"]
        await console.press("j", "s")
        assert column(console, "programs", "probe") == ["alpha", "hello", "hello"]
        # The cursor goes with its row.
        assert deck_table(console, "programs").cursor_index == 2
        await do(console, "program.sort memory")
        assert "Memory▼" in console.text
        # After the last column they stand as they came.
        await do(console, "program.sort metrics")
        await console.press("s")
        assert column(console, "programs", "probe") == ["hello", "hello", "alpha"]


async def test_columns_are_those_of_the_settings_and_of_the_command() -> None:
    settings = Settings(columns={"flows": ("rate", "source", "size")})
    async with desk(100, 24, settings=settings) as console:
        await console.feed(flow(1, 10), flow(2, 20))
        assert console.header == ["Rate▼", "Source", "Size"]
        await do(console, "view.columns destination, first packets")
        # The sort column is always visible.
        assert " ".join(console.header) == "Destination First (UTC) Packets Rate▼"
        await do(console, "flow.sort packets")
        assert " ".join(console.header) == "Destination First (UTC) Packets▼"
        # The key goes through what is chosen.
        await console.press("s")
        assert "Destination▲" in console.lines[1]
        for wrong, why in (
            ("view.columns rat", "flows have no column 'rat'; did you mean rate?"),
            ("view.columns rate,rate", "column 'rate' is there twice"),
        ):
            await do(console, wrong)
            assert console.complaints[-1] == why
        await do(console, "view.columns usual")
        assert console.header[:3] == ["Dir", "Proto", "Source"]
        await console.press("6")
        await do(console, "view.columns text")
        assert "Event" in console.header


async def test_keys_scroll_chosen_columns_and_half_pages() -> None:
    names = ("source", "destination", "rate", "bytes", "flags", "tunnel_id")
    async with desk(80, 14, settings=Settings(columns={"flows": names})) as console:
        await console.feed(*(flow(number, number) for number in range(1, 40)))
        shown = "Source", "Destination", "Rate▼", "Bytes"
        assert console.header == [*shown, "+2", "›"]  # noqa: RUF001
        await console.press("greater_than_sign")
        assert " ".join(console.header).startswith("Source Rate▼ Bytes TCP flags Tunnel id ‹ +1")  # noqa: RUF001
        await console.press("less_than_sign")
        assert console.header[:4] == [*shown]
        for key, row in (("ctrl+d", 5), ("ctrl+f", 14), ("ctrl+u", 9), ("ctrl+b", 0)):
            await console.press(key)
            assert console.table.cursor_index == row, key


@pytest.mark.parametrize("height", [16, 40])
async def test_columns_are_chosen_and_moved_in_a_list(height: int) -> None:
    async with desk(80, height) as console:
        await console.feed(flow(1, 10))
        await console.press("vertical_line")
        assert "Columns of flows" in console.text
        assert "esc cancels" in console.text
        await console.press("space", "space", "J", "G", "space", "escape")
        assert console.header[:3] == ["Dir", "Proto", "Source"]
        # Direction and protocol go; the source comes after the destination.
        await console.press("vertical_line", "space", "space", "J", "enter")
        assert console.header[:3] == ["Destination", "Source", "Rate▼"]
        await console.press("vertical_line", "u", "enter")
        assert console.header[:3] == ["Dir", "Proto", "Source"]


def test_a_table_is_never_without_columns_that_it_knows() -> None:
    with pytest.raises(UsageError, match="hops have no column 'host_name'; did you mean host"):
        TABLES["hops"].check(("loss", "host_name"))
    TABLES["hops"].check(("loss", "host"))
