"""Names in policies: applications, profiles, and what they stand for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from bpf.errors import UsageError, did_you_mean
from probes.monitor.policy.model import TRACE, Policy

TOP_FLOWS = 3
"""Flows that `trace` traces without a number."""


def check_names(
    policies: Iterable[Policy],
    applications: Collection[str],
    profiles: Mapping[str, Collection[str]],
    where: str = "",
) -> None:
    """Check that all names exist. Raises UsageError, after `where`, with a hint."""
    for profile, names in profiles.items():
        if profile in (*applications, TRACE):
            what = "path tracing" if profile == TRACE else "an application"
            raise UsageError(f"{where}profiles.{profile}: {what} has this name")
        for name in names:
            if name not in applications:
                text = f"{where}profiles.{profile}: there is no application {name!r}"
                raise UsageError(text, hint=did_you_mean(name, sorted(applications)))
    known = sorted({*applications, *profiles, TRACE})
    for policy in policies:
        for name in policy.run:
            if name.partition(":")[0] not in known:
                text = f"{where}policy {policy.name!r}: run: there is no application {name!r}"
                raise UsageError(text, hint=did_you_mean(name, known))


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
