"""Fields that filters of events can use."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probes.filter.domain import Domain
from probes.filter.fields import Codes, Texts
from probes.filter.table import RowTable
from probes.snapshot import SEVERITIES, Event, host_of

EVENTS = Domain(
    "events",
    {
        "severity": Codes(
            "severity", "info, warning or error", "severity",
            {name: place for place, name in enumerate(SEVERITIES)},
        ),
        "source": Texts("source", "source of the event", ("flow", "path", "monitor")),
        "node": Texts("node", "host of the fleet whose event it is contains the text"),
        "text": Texts("text", "text of the event", ('"table full"',)),
    },
    ("text",),
    "text",
)  # fmt: skip
_EVENT = np.dtype([("severity", "i1"), ("source", "O"), ("text", "O"), ("node", "O")])


def event_table(events: Sequence[Event]) -> RowTable:
    """Events as rows for filters of EVENTS."""
    rows = np.empty(len(events), _EVENT)
    for place, event in enumerate(events):
        rows[place] = SEVERITIES.index(event.severity), event.source, event.text, host_of(event)
    return RowTable(rows)
