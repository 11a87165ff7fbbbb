"""Fields that filters of probes and of path findings can use."""

from __future__ import annotations

import numpy as np

from bpf.arrays import Array, Rows
from bpf.quantities import SHARES
from probes.filter import Domain, RowTable
from probes.filter.fields import Addresses, Codes, Field, Quantity, times
from probes.flow.filter import BARE, key_fields
from probes.path.records import PATH, PathRowKind, ProbeOutcome

_OUTCOMES = {outcome.label.replace(" ", "_"): int(outcome) for outcome in ProbeOutcome}
_KINDS = {kind.label.replace(" ", "_"): int(kind) for kind in PathRowKind}
HOP = Quantity("hop", "hop: TTL or hop limit", {})
LOSS = Quantity("loss", "share of lost probes", SHARES, most=1.0)


def hop_fields(router: Addresses) -> dict[str, Field]:
    """Fields of every row of a hop; times are in seconds."""
    return {
        "hop": HOP,
        "ttl": HOP,
        "router": router,
        "rtt": times("rtt", "round-trip time", "ms", column_ns=1e9),
    }


_JITTER = times("jitter", "variation of round-trip times", "ms", column_ns=1e9)
ANSWERS = Domain(
    "hops",
    {
        **key_fields(named=False),
        **hop_fields(Addresses("router that answered", ("responder",))),
        "outcome": Codes("outcome", "outcome of the probe", "outcome", _OUTCOMES),
    },
    BARE,
    "host",
)
"""Probes, dtype HOP, with a column `rtt`."""
FINDINGS = Domain(
    "paths",
    {
        **key_fields(named=False),
        **hop_fields(Addresses("router at the hop", ("responder",))),
        "loss": LOSS,
        "jitter": _JITTER,
        "kind": Codes("kind", "kind of the row", "kind", _KINDS),
    },
    BARE,
    "host",
)
"""dtype PATH, with columns `rtt`, `loss` and `jitter` that only summaries have."""


def answers_table(rows: Array) -> RowTable:
    """Rows of dtype HOP (n,) for filters of ANSWERS."""

    def rtt() -> Array:
        took = (rows["received_ns"] - rows["sent_ns"]) / 1e9
        return np.where(rows["received_ns"] > 0, took, np.nan)

    return RowTable(rows, {"rtt": rtt})


def findings_table(rows: Rows[PATH]) -> RowTable:
    """Rows of dtype PATH (n,) for filters of FINDINGS."""
    summary = rows["kind"] == PathRowKind.SUMMARY

    def seconds(name: str) -> Array:
        return np.where(summary & (rows[name] >= 0), rows[name] / 1e9, np.nan)

    def loss() -> Array:
        known = rows["answered"] + rows["lost"]
        return np.where(summary & (known > 0), rows["lost"] / np.maximum(known, 1), np.nan)

    made = {
        "rtt": lambda: seconds("median_ns"),
        "jitter": lambda: seconds("jitter_ns"),
        "loss": loss,
    }
    return RowTable(rows, made)
