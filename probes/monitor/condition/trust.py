"""The metrics of a policy's condition: with names of filters, and without trusted hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bpf.errors import TextError
from probes.filter.domain import NONE
from probes.monitor.condition.selection import canonical
from probes.monitor.condition.terms import MetricTerm
from probes.monitor.owners.text import is_of_owners
from probes.monitor.selected import UNITS, SelectedMetric

_KINDS = {
    "tcp": "tcp",
    "udp": "udp",
    "icmp": "proto:icmp,icmp6",
    "syn": "flags:S !flags:A",
    "syn_ack": "flags:SA",
    "fin": "flags:F",
    "rst": "flags:R",
}
"""Filters of the metrics of all packets, by the first part of their names."""


def shaped(term: MetricTerm, names: Mapping[str, str], trusted: Sequence[str]) -> MetricTerm:
    """Return a metric with the name of its filter in its text. `names` are by canonical text."""
    if term.selection in names:
        term = replace(term, text=f"{term.name} on @{names[term.selection]}")
    return _without(term, trusted) if trusted else term


def _without(term: MetricTerm, trusted: Sequence[str]) -> MetricTerm:
    """Return a metric that packets of trusted networks do not count in, with the same text.

    A trusted host is the source, of outgoing packets the destination, and of answers either end.
    """
    metric = SelectedMetric(term.name, term.selection)
    if metric.of_owners or is_of_owners(term.selection):
        return term
    end = "dst" if metric.outgoing else "net" if metric.leaves else "src"
    kind, _, unit = term.name.rpartition("_")
    name, selection = term.name, f"({term.selection})" if term.selection else ""
    if not selection and kind in _KINDS:
        name, selection = unit, _KINDS[kind]
    if name not in UNITS:
        return term
    try:
        selection = canonical(f"{selection} !{end}:{','.join(trusted)}", NONE)
    except TextError:  # It selects trusted hosts only.
        return term
    return replace(term, name=name, selection=selection, text=str(term))
