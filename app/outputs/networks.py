"""Networks and countries of addresses, from local databases in MaxMind's format (.mmdb).

MaxMind, DB-IP and IPinfo publish such files. They name their values differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from errno import EINVAL
from typing import Any

from app.files import as_invoker, expand
from bpf.errors import UsageError, printable

_MOST_KNOWN = 1 << 16
"""Addresses whose facts are kept."""
_NUMBERS = ("autonomous_system_number", "asn", "as_number")
_NAMES = ("autonomous_system_organization", "as_name", "as_organization")
_COUNTRIES = ("country", "country_code", "registered_country")


class Networks:
    """Databases of networks, in the order in which they are asked."""

    def __init__(self, files: Iterable[str]) -> None:
        """Open the databases. Raises UsageError for a file that is missing or no database."""
        self._readers = [_opened(file) for file in files]
        self._known: dict[str, RouterFacts] = {}

    def describe(self, address: str) -> RouterFacts:
        """Return number and name of the autonomous system, and the country."""
        if (known := self._known.get(address)) is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[address] = self._look_up(address)
        return known

    def _look_up(self, address: str) -> RouterFacts:
        asn, as_name, country = 0, "", ""
        for reader in self._readers:
            try:
                record = reader.get(address)
            except Exception:
                continue
            if isinstance(record, Mapping):
                asn = asn or _number(record)
                as_name = as_name or _as_name(record)
                country = country or _country(record)
        return RouterFacts(asn=asn, as_name=as_name, country=country)


def _opened(file: str) -> Any:
    # Imported here: few runs have databases.
    from maxminddb import MODE_FILE, open_database

    path = expand(file)
    try:
        with as_invoker():
            # Unlike a mapped file, a read one may be cut short by an update without a crash.
            return open_database(path, MODE_FILE)
    except OSError as error:
        if error.errno != EINVAL:  # of an empty file
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except Exception:
        pass
    raise UsageError(f"{path} is no MaxMind database (.mmdb)")


def _number(record: Mapping[str, Any]) -> int:
    """Return the AS number; IPinfo writes `AS64500`."""
    for key in _NUMBERS:
        text = str(record.get(key, "")).upper().removeprefix("AS")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def _as_name(record: Mapping[str, Any]) -> str:
    keys = (*_NAMES, "name") if _number(record) else _NAMES
    found = (record.get(key) for key in keys)
    return next((printable(each) for each in found if isinstance(each, str) and each), "")


def _country(record: Mapping[str, Any]) -> str:
    """Return the code of two letters."""
    for key in _COUNTRIES:
        found = record.get(key)
        if isinstance(found, Mapping):
            found = found.get("iso_code")
        if isinstance(found, str) and len(found) == 2 and found.isascii() and found.isalpha():
            return found.upper()
    return ""


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
