"""Fields that filters of events can use, and fields of owners and of TCP health for flows.

Rows of flows have these columns after they were joined with the sockets of their window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bpf.quantities import SHARES
from probes.filter.domain import Domain
from probes.filter.fields import Codes, Field, Quantity, Texts, times
from probes.filter.syntax import Node
from probes.filter.table import RowTable
from probes.snapshot import SEVERITIES, Event, host_of
from probes.tables.flow_columns import OWNER_COLUMNS

LIMITS = (
    "idle", "application", "receiver", "send-buffer", "paced", "queue", "loss", "bandwidth",
    "reads-slowly", "lost-before", "sender", "no-answer", "refused",
)  # fmt: skip
"""Words for limits of connections; their codes begin with 1."""
_TEXTS = {one.name: Texts(one.name, one.term, one.examples) for one in OWNER_COLUMNS}
OWNER_FIELDS: Mapping[str, Field] = {
    "proc": _TEXTS["process"],
    "process": _TEXTS["process"],
    "pid": Quantity("pid", "number of the process", {}),
    **_TEXTS,
    "limit": Codes(
        "limit", "what limits the connection", "limit",
        {name: code for code, name in enumerate(LIMITS, 1)},
    ),
    "retrans": Quantity("retrans", "share of retransmitted segments", SHARES),
    "rtt": times("rtt", "round-trip time to the other end", "ms", column_ns=1e9),
}  # fmt: skip
"""Columns of texts are coded; `retrans` is a share from 0 to 1 and `rtt` in seconds, both NaN if
unknown; `limit` is 0 if unknown."""
_OWNED_ONLY = OWNER_FIELDS.keys() - {"rtt"}


def needs_owners(root: Node | None) -> str:
    """Return the first term of a filter that no row passes without owners; empty for none."""
    terms = root.terms() if root is not None else ()
    return next((term.text for term in terms if term.field.lower() in _OWNED_ONLY), "")


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
