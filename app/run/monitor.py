"""Policies and receivers of the monitor, from a file and from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.files import as_invoker
from bpf.errors import ProbedeckError, UsageError, together
from probes.monitor.options import Receiver

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.monitor.policy import Policy

SHIPPED, NO_POLICIES = "shipped", "none"
"""Names in place of a file of policies: the ready ones, and none."""
_END = r"(?:\[([^]]+)\]|([^][:]+)):(\d{1,5})"
_RECEIVER = re.compile(f"{_END}-{_END}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Policies:
    """Policies with their profiles and applications."""

    policies: tuple[Policy, ...] = ()
    profiles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Named sets of applications."""
    applications: tuple[ProbeConfig, ...] = ()
    """Applications that are not built in."""
    paths: Mapping[str, Any] = field(default_factory=dict)
    """Fields of PathOptions that the file sets."""


def policies_of(
    path: str, texts: Sequence[str], probes: Sequence[ProbeConfig]
) -> tuple[Policies, Mapping[str, Any]]:
    """Return policies, and the fields of MonitorOptions that the file at `path` sets.

    Policies come from the file and from `texts` in their short form; applications come from the
    file and from `probes`. The path may be SHIPPED or NO_POLICIES. Raises UsageError for a mistake,
    also one of their combination.
    """
    if path == NO_POLICIES:
        path = ""
    if not (path or texts or probes):
        # Without policies, the start needs no pydantic.
        return Policies(), {}
    from probes.monitor.policy import BUILT_IN, PolicyFile, load

    own = tuple(probe for probe in probes if probe.is_application)
    errors: list[ProbedeckError] = []
    file = PolicyFile()
    if path == SHIPPED:
        from probes.monitor.policy.ready import shipped

        file = shipped()
    elif path:
        try:
            with as_invoker():
                file = load(path, [each.name for each in own])
        except UsageError as error:
            errors.append(error)
    applications = (*file.applications, *own)
    known = (*BUILT_IN, *(each.name for each in applications))
    policies = list(file.policy)
    for text in texts:
        try:
            policies.append(_policy(text, policies, known, file.profiles))
        except UsageError as error:
            errors.append(error)
    if errors:
        raise together(errors)
    return Policies(tuple(policies), file.profiles, applications, file.paths), file.monitor


def _policy(
    text: str,
    others: Sequence[Policy],
    applications: Sequence[str],
    profiles: Mapping[str, Sequence[str]],
) -> Policy:
    """Parse a policy beside others. Raises UsageError with all mistakes."""
    from probes.config.config_errors import ConfigFault, errors_of
    from probes.monitor.policy import Policy, ShortForm, unknown_names
    from probes.monitor.state import MAX_POLICIES

    policy = Policy.parse_short(text)
    faults = [
        each._replace(keys=each.keys[2:])
        for each in unknown_names([policy.run], applications, profiles)
        if each.keys[0] == "policy"
    ]
    if any(policy.name == other.name for other in others):
        faults.append(ConfigFault(("name",), f"there are two policies {policy.name!r}"))
    if len(others) >= MAX_POLICIES:
        faults.append(ConfigFault(("name",), f"there can be {MAX_POLICIES} policies"))
    if faults:
        raise errors_of(faults, ShortForm.of(text))
    return policy


def receiver_of(text: str) -> Receiver:
    """Parse `SRC:PORT-DST:PORT` with IPv6 addresses in brackets. Raises UsageError."""
    found = _RECEIVER.fullmatch(text)
    if found is None:
        raise UsageError(
            f"receiver {text!r} is not understood",
            hint="SRC:PORT-DST:PORT, such as 192.0.2.1:5000-192.0.2.2:6343 or [::1]:1-[::2]:2",
        )
    source, source_4, source_port, destination, destination_4, destination_port = found.groups()
    receiver = Receiver(
        source or source_4, int(source_port), destination or destination_4, int(destination_port)
    )
    receiver.check()
    return receiver
