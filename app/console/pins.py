"""Maps that the user has pinned to the Overview."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

Pin = tuple[str, str, str]
"""Probe, direction, map."""


class Pins:
    """The pinned maps, oldest first; a layout keeps them."""

    def __init__(self) -> None:
        self.maps: tuple[Pin, ...] = ()

    def toggle(self, pin: Pin) -> bool:
        """Pin a map, or unpin it; return whether it is pinned now."""
        pinned = pin not in self.maps
        self.maps = (*(each for each in self.maps if each != pin), *([pin] if pinned else []))
        return pinned

    def keep(self) -> dict[str, str]:
        """Return the pins for a layout."""
        return {"pinned": json.dumps(self.maps)}

    def restore(self, kept: Mapping[str, str]) -> None:
        """Restore the values of `keep`; ignore values of another form."""
        with suppress(ValueError, TypeError):
            pins = [tuple(map(str, pin)) for pin in json.loads(kept.get("pinned", "[]"))]
            self.maps = tuple((pin[0], pin[1], pin[2]) for pin in pins if len(pin) == 3)
