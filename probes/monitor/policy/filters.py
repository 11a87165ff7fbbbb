"""Named filters of a file of policies: the table `[filters]`."""

from __future__ import annotations

import re

from bpf.errors import TextError
from probes.config.config_errors import ConfigFault
from probes.filter import parse
from probes.flow.filter import WINDOW_FLOWS
from probes.language import MAX_DEPTH

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
