"""Names in policies: applications, profiles, and filters of the table `[filters]`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from bpf.errors import TextError, did_you_mean
from probes.config.config_errors import ConfigFault, Request, errors_of
from probes.filter import parse
from probes.flow.filter import WINDOW_FLOWS
from probes.language import MAX_DEPTH
from probes.monitor.actions.capture import is_of_packets
from probes.monitor.policy.model import TRACE, Policy

TOP_FLOWS = 3
"""Flows that `trace` traces without a number."""


def unknown_names(
    runs: Iterable[Sequence[str]],
    applications: Collection[str],
    profiles: Mapping[str, Sequence[str]],
) -> Iterator[ConfigFault]:
    """Yield the names that do not exist, in profiles and in `run` of each policy."""
    for profile, names in profiles.items():
        if profile in (*applications, TRACE):
            what = "path tracing" if profile == TRACE else "an application"
            yield ConfigFault(("profiles", profile), f"{what} has this name")
        for at, name in enumerate(names):
            if name not in applications:
                hint = did_you_mean(name, sorted(applications))
                yield ConfigFault(
                    ("profiles", profile, at), f"there is no application {name!r}", hint
                )
    known = sorted({*applications, *profiles, TRACE})
    for number, run in enumerate(runs):
        for at, name in enumerate(run):
            if name.partition(":")[0] not in known and not is_of_packets(name):
                keys = ("policy", number, "run", at)
                hint = did_you_mean(name, known)
                yield ConfigFault(keys, f"there is no application {name!r}", hint)


def check_names(
    policy: Policy, applications: Collection[str], profiles: Mapping[str, Sequence[str]]
) -> None:
    """Check that all names exist. Raises UsageError."""
    source = Request(f"policy {policy.name!r}")
    faults = [
        fault._replace(keys=fault.keys[2:]) if fault.keys[0] == "policy" else fault
        for fault in unknown_names([policy.run], applications, profiles)
    ]
    if faults:
        raise errors_of(faults, source)


def resolve(policy: Policy, profiles: Mapping[str, Collection[str]]) -> tuple[tuple[str, ...], int]:
    """A policy's applications, each once and in order, and the number of top flows to trace."""
    names: dict[str, None] = {}
    traced = 0
    for name in policy.run:
        what, _, count = name.partition(":")
        if is_of_packets(name):
            continue
        if what == TRACE:
            traced = max(traced, int(count or TOP_FLOWS))
        else:
            names.update(dict.fromkeys(profiles.get(name, (name,))))
    return tuple(names), traced


_NAME = re.compile(r"@([^\s,()]+)")


class NamedFilters:
    """Filters by name, and the mistakes in them."""

    def __init__(self, table: object) -> None:
        """`table` is the unchecked value of the key."""
        written = table if isinstance(table, dict) else {}
        self._written = {name: text for name, text in written.items() if isinstance(text, str)}
        self._begun: set[str] = set()
        self.texts = dict.fromkeys(written.keys() - self._written, "")
        """By name, without names in them; empty if the filter is mistaken."""
        self.faults: list[ConfigFault] = []
        for name in self._written:
            self._read(name)

    def caused(self, fault: ConfigFault) -> bool:
        """Whether a fault comes from a mistaken filter, which it names."""
        found = fault.column and _NAME.match(fault.text, fault.column - 1)
        return bool(found and self.texts.get(found[1]) == "")

    def _read(self, name: str, depth: int = 0) -> None:
        if name in self._begun or name not in self._written or depth > MAX_DEPTH:
            return
        self._begun.add(name)
        text = self._written[name]
        # Filters within come first: each mistake has its own place, and texts stay short.
        for other in _NAME.findall(text):
            self._read(other, depth + 1)
        fault = ConfigFault(("filters", name), "must not be empty")
        stored = ""
        try:
            stored = parse(text, WINDOW_FLOWS, {**self._written, **self.texts}).canonical
        except TextError as error:
            fault = ConfigFault(fault.keys, error.problem, error.hint, error.column, text)
        if not stored and not self.caused(fault):
            self.faults.append(fault)
        self.texts[name] = stored
