"""Two moments of screen 2 side by side: the changes of each hop."""

from __future__ import annotations

from collections.abc import Sequence

from app.console.host_names import Names
from app.console.screens.paths.columns import HOP_CHANGES
from app.console.screens.paths.lines import HopChange
from app.console.screens.paths.model import Hop
from app.console.screens.paths.numbers import NONE, Numbers
from app.console.screens.paths.rows import host_text
from app.console.tables.columns import row
from widgets.table.rows import Rows


def hop_changes(before: Sequence[Hop], after: Sequence[Hop], names: Names) -> Rows:
    """Return a row for each hop of a path at one of two moments, with its number as key."""
    old, new = ({hop.number: hop for hop in hops} for hops in (before, after))

    def at(hop: Hop | None) -> tuple[Numbers, str]:
        return (NONE, "") if hop is None else (hop.numbers, host_text(hop, names))

    rows = []
    for number in sorted(old.keys() | new.keys()):
        (was, host_before), (now, host_now) = at(old.get(number)), at(new.get(number))
        change = HopChange(number, was, now, host_before, host_now)
        rows.append(row(HOP_CHANGES, number, change))
    return Rows.of(rows)
