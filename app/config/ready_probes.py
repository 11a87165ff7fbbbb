"""The library of ready probes: the shipped examples, with a line of purpose each."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from bpf.errors import UsageError, did_you_mean

_LIBRARY = Path(__file__).parents[1] / "library"
_SIDES = {"ingress", "egress", "event"}
EMPTY = "empty"
"""The skeleton of a new probe."""


@dataclass(frozen=True, slots=True)
class ReadyProbe:
    """A shipped probe."""

    name: str
    purpose: str
    """The first line of its file."""
    file: Path


def ready_probes() -> tuple[ReadyProbe, ...]:
    """Return the shipped probes by name, the empty one first."""
    found = [
        ReadyProbe(path.stem, text.splitlines()[0].lstrip("# "), path)
        for path in sorted(_LIBRARY.glob("*.toml"))
        if _SIDES & tomllib.loads(text := path.read_text(encoding="utf-8")).keys()
    ]
    return tuple(sorted(found, key=lambda each: each.name != EMPTY))


def ready_probe(name: str) -> ReadyProbe:
    """Return a shipped probe. Raises UsageError if no probe has this name."""
    known = {each.name: each for each in ready_probes()}
    if name not in known:
        raise UsageError(f"no ready probe {name!r}", hint=did_you_mean(name, sorted(known)))
    return known[name]
