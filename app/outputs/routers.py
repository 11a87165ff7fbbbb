"""Known facts about a router's address: its name, and the network that it belongs to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """Facts about an address; empty or 0 if unknown."""

    name: str = ""
    """By reverse DNS."""
    asn: int = 0
    """Number of the autonomous system."""
    as_name: str = ""
    country: str = ""
    """ISO 3166-1 code of two letters."""

    @property
    def network(self) -> str:
        """`AS64500 Example Net, DE`; empty if unknown."""
        parts = [f"AS{self.asn}" if self.asn else "", self.as_name]
        return ", ".join(filter(None, [" ".join(filter(None, parts)), self.country]))


Describe = Callable[[str], RouterFacts]
"""Returns the facts about an address as text."""


def nothing_known(address: str) -> RouterFacts:
    """Describe no address."""
    return RouterFacts()


def describing(network: Describe, name: Callable[[str], str]) -> Describe:
    """Return a description with the network of an address and its name."""

    def describe(address: str) -> RouterFacts:
        return replace(network(address), name=name(address))

    return describe
