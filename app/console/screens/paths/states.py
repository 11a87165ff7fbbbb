"""Values of the named states of screen 2."""

from __future__ import annotations

import math

from app.console.protocol import Console
from app.console.screens.paths.model import PathKey, Paths
from app.tape.named_state import StateValues


def values(console: Console) -> StateValues:
    """Return the values before the user has turned to the screen."""
    paths = Paths()
    paths.take(console.frame.paths, ())
    return of_path(paths, None)


def of_path(paths: Paths, choice: PathKey | None) -> StateValues:
    """Return the values about all traced paths, and about the chosen path."""
    values: StateValues = {"path.count": sum(one.flow is None for one in paths.choices)}
    if choice is None or choice not in paths.choices:
        return values
    hops, summary = paths.hops(choice, 1), paths.summary(choice)
    return values | {
        "path.destination": choice.destination,
        "path.hops": len(hops),
        "path.answering": sum(bool(hop.routers) for hop in hops),
        "path.rtt": _known(summary.rtt),
        "path.loss": _known(summary.loss),
    }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
