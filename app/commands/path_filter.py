"""Filters of live paths and of their hops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from probes import filter as filters
from probes.filter import Domain, Filter, parts
from probes.filter.fields import Addresses, Ports, Quantity, Texts, ip_version, protocol, times
from probes.path.filter import LOSS, hop_fields

_TIMES = {
    name: times(name, words, "ms", column_ns=1e9)
    for name, words in (
        ("rtt", "round-trip time"),
        ("last", "the last round-trip time"),
        ("p95", "95th percentile of round-trip times"),
        ("jitter", "variation of round-trip times"),
        ("queue", "queue that holds packets up"),
    )
}
_DESTINATION = ("destination",)
PATHS = Domain(
    "paths",
    {
        "dst": Addresses("destination", _DESTINATION, named=True),
        "host": Addresses("destination", _DESTINATION, named=True),
        "net": Addresses("destination is within", _DESTINATION, prefixes_only=True),
        "proto": protocol("protocol of the flow"),
        "port": Ports("either port of the flow"),
        "sport": Ports("source port of the flow", ("source",)),
        "dport": Ports("destination port of the flow", _DESTINATION),
        "ip": ip_version(),
        "hops": Quantity("hops", "routers on the way", {}),
        "rtt": _TIMES["rtt"],
        "loss": LOSS,
        "queue": _TIMES["queue"],
        "node": Texts("node", "host of the fleet that traces the path contains the text"),
    },
    ("proto", "port", "net"),
    "host",
)
"""Paths by destination and flow. Times of paths and hops are in seconds."""
HOPS = Domain(
    "hops",
    {
        **hop_fields(Addresses("router that answers most", ("responder",), named=True)),
        "loss": LOSS,
        **{name: _TIMES[name] for name in ("last", "p95", "jitter", "queue")},
    },
)


def parse(text: str, saved: Mapping[str, str]) -> tuple[Filter, Filter]:
    """Return a filter of paths and one of hops. Raises TextError.

    Terms that both know are for both. If one term is for hops only, all of those are for hops.
    """
    of_paths, of_hops = parts(text, (PATHS, HOPS), saved)
    if of_paths.missing:
        own = filters.parse(" ".join(of_hops.missing), PATHS, saved)
        of_paths = replace(own, text=of_paths.text)
    return of_paths, of_hops
