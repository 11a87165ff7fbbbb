"""Names in policies: applications and profiles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from bpf.errors import did_you_mean
from probes.config.config_errors import ConfigFault, Request, errors_of
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
            if name.partition(":")[0] not in known:
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
        if what == TRACE:
            traced = max(traced, int(count or TOP_FLOWS))
        else:
            names.update(dict.fromkeys(profiles.get(name, (name,))))
    return tuple(names), traced
