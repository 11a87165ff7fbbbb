"""Fields of owners and of TCP health, for filters of flows.

Rows have the columns after they were joined with the sockets of their window.
"""

from __future__ import annotations

from collections.abc import Mapping

from bpf.quantities import SHARES
from probes.filter.fields import Codes, Field, Quantity, Texts, times
from probes.filter.syntax import Node

LIMITS = (
    "idle", "application", "receiver", "send-buffer", "paced", "queue", "loss", "bandwidth",
    "reads-slowly", "lost-before", "sender", "no-answer", "refused",
)  # fmt: skip
"""Words for limits of connections; their codes begin with 1."""
_PROCESS = Texts("process", "name of the process contains the text", ("nginx",))
OWNER_FIELDS: Mapping[str, Field] = {
    "proc": _PROCESS,
    "process": _PROCESS,
    "pid": Quantity("pid", "number of the process", {}),
    "user": Texts("user", "name of the process's user contains the text", ("root",)),
    "unit": Texts("unit", "systemd's unit contains the text", ("web.service",)),
    "container": Texts("container", "name or id of the container contains the text"),
    "pod": Texts("pod", "name or uid of the pod contains the text"),
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
