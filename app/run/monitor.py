"""Policies and receivers of the monitor, from a file and from the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.files import as_invoker
from bpf.errors import UsageError
from probes.monitor.options import Receiver

if TYPE_CHECKING:
    from probes.config.model import ProbeConfig
    from probes.monitor.policy import Policy

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
    file and from `probes`. Raises UsageError for a mistake, also one of their combination.
    """
    if not (path or texts or probes):
        # Without policies, the start needs no pydantic.
        return Policies(), {}
    from pydantic import ValidationError

    from probes.config.config_errors import config_error
    from probes.monitor.policy import BUILT_IN, Policy, PolicyFile, check_names, load

    with as_invoker():
        file = load(path) if path else PolicyFile()
    policies = (*file.policy, *map(Policy.parse_short, texts))
    try:
        PolicyFile(policy=policies)
    except ValidationError as error:
        raise config_error(error, PolicyFile, "--policy") from None
    applications = (*file.applications, *(probe for probe in probes if probe.is_application))
    known = (*BUILT_IN, *(each.name for each in applications))
    check_names(policies, known, file.profiles)
    options = file.monitor.options()
    said = {name: getattr(options, name) for name in file.monitor.model_fields_set}
    paths = {name: getattr(file.paths, name) for name in file.paths.model_fields_set}
    return Policies(policies, file.profiles, applications, paths), said


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
