"""The file of a fleet, `hosts.toml`: its hosts, how to reach each, and labels to choose them by."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.api.address import Remote
from app.config.paths import beside, text_of
from app.config.toml_lines import TomlDocument
from bpf.errors import ProbedeckError, UsageError, did_you_mean, together
from probes.config.trusted_file import open_trusted

if TYPE_CHECKING:
    from probes.monitor.policy import Policy

RECORD = "record:"
"""Begin of the address of a host whose recording is replayed: its directory follows."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_POLICY = ("name", "condition", "hold", "policy")
_MOST_MERGED = 32
"""Distinct flows are counted of at most so many hosts."""
_RESERVED = ("host", "name")
"""A label may not have these names: they are words of filters."""


@dataclass(frozen=True, slots=True)
class FleetHost:
    """One host of a fleet."""

    name: str
    remote: Remote
    labels: Mapping[str, str] = field(default_factory=dict)
    """`{"site": "ams"}`."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The hosts of a file, in its order."""

    hosts: tuple[FleetHost, ...]
    group: str = ""
    """The label by which screens group the hosts; empty: none."""
    policies: tuple[Policy, ...] = ()
    """Policies on the sums of the hosts; each has the name of a host's policy in `run`."""

    @property
    def is_recorded(self) -> bool:
        """Whether the hosts are recordings."""
        return self.hosts[0].remote.url.startswith(RECORD)


def load(path: str) -> Fleet:
    """Read `hosts.toml`. Raises UsageError with every mistake."""
    file = Path(path)
    try:
        with open(file, "rb", opener=open_trusted) as opened:
            document = TomlDocument.of(file, text_of(opened, file))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return _Reader(document).fleet()


def needs_flows(policy: Policy) -> bool:
    """Whether the condition of a policy, without selections, has the number of distinct flows."""
    return re.search(r"\bflows\b", policy.condition) is not None


def _check(policy: Policy, hosts: int) -> None:
    """Check that a fleet of so many hosts has the metrics of a policy. Raises UsageError."""
    if policy.metrics:
        named = ", ".join(sorted(map(str, policy.metrics)))
        raise UsageError(
            f"condition: {named}: hosts send no such metric",
            hint="metrics of all packets, and flows, are known of a fleet",
        )
    if needs_flows(policy) and hosts > _MOST_MERGED:
        raise UsageError(
            f"condition: flows of {hosts} hosts cannot be merged each second",
            hint=f"{_MOST_MERGED} at most; other metrics have no limit",
        )


class _Reader:
    def __init__(self, document: TomlDocument) -> None:
        self._document = document
        self._mistakes: list[ProbedeckError] = []

    def fleet(self) -> Fleet:
        data = self._document.data
        self._known("", data, ("hosts", "fleet"))
        hosts = self._hosts(data.get("hosts"))
        table = data.get("fleet", {})
        group = self._group(table, hosts)
        written = table.get("policies", []) if isinstance(table, dict) else []
        policies = self._policies(written, len(hosts)) if written else ()
        recorded = {host.name: host.remote.url.startswith(RECORD) for host in hosts}
        if any(recorded.values()) and (written or not all(recorded.values())):
            live = next((name for name, of in recorded.items() if not of), "")
            text = f"host {live} is no recording" if live else "policies need running hosts"
            self._wrong("fleet", text, hint="hosts are recordings, or none of them is")
        if self._mistakes:
            raise together(self._mistakes)
        return Fleet(hosts, group, policies)

    def _hosts(self, tables: Any) -> tuple[FleetHost, ...]:
        if not (isinstance(tables, list) and tables and all(isinstance(t, dict) for t in tables)):
            self._wrong("hosts", "names no host", hint="[[hosts]], then name and url of each")
            return ()
        hosts: dict[str, FleetHost] = {}
        for number, table in enumerate(tables, 1):
            name = table.get("name")
            where = f"host {name if isinstance(name, str) else number}"
            if (host := self._host(where, table)) is None:
                continue
            if host.name in hosts:
                self._wrong(where, "is named twice")
            hosts[host.name] = host
        return tuple(hosts.values())

    def _host(self, where: str, table: Mapping[str, Any]) -> FleetHost | None:
        before = len(self._mistakes)
        self._known(where, table, ("name", "url", "token", "ca", "labels"))
        for key in ("name", "url"):
            if key not in table:
                self._wrong(where, f"has no {key}")
        texts = {key: table.get(key, "") for key in ("name", "url", "token", "ca")}
        for key, value in texts.items():
            if not isinstance(value, str):
                self._wrong(where, f"{key} is not a text")
        labels = self._labels(where, table.get("labels", {}))
        if len(self._mistakes) > before:
            return None
        if not _NAME.fullmatch(texts["name"]):
            hint = "letters, digits, dots, dashes and underscores, at most 63"
            self._wrong(where, f"{texts['name'][:63]!r} is no name of a host", hint=hint)
            return None
        # Files lie beside the file that names them.
        if texts["url"].startswith(RECORD):
            place = beside(self._document.path, texts["url"].removeprefix(RECORD))
            texts["url"] = RECORD + place
        files = (beside(self._document.path, texts[k]) if texts[k] else "" for k in ("token", "ca"))
        return FleetHost(texts["name"], Remote(texts["url"], *files), labels)

    def _labels(self, where: str, labels: Any) -> Mapping[str, str]:
        if not isinstance(labels, dict) or not all(
            isinstance(text, str) and text for text in labels.values()
        ):
            self._wrong(where, "labels are no table of texts", hint='labels = { site = "ams" }')
            return {}
        for name in labels:
            if not _NAME.fullmatch(name) or name in _RESERVED:
                self._wrong(where, f"{name[:63]!r} is no name of a label")
        return labels

    def _group(self, table: Any, hosts: tuple[FleetHost, ...]) -> str:
        if not isinstance(table, dict):
            self._wrong("fleet", "is no section")
            return ""
        self._known("fleet", table, ("group", "policies"))
        group = table.get("group", "")
        labels = sorted({name for host in hosts for name in host.labels})
        if not isinstance(group, str) or (group and group not in labels):
            hint = did_you_mean(str(group), labels) or "no host has a label"
            self._wrong("fleet", "group is no label of the hosts", hint=hint)
            return ""
        return group

    def _policies(self, tables: Any, hosts: int) -> tuple[Policy, ...]:
        if not (isinstance(tables, list) and all(isinstance(t, dict) for t in tables)):
            hint = "[[fleet.policies]], then name, condition and policy of each"
            self._wrong("fleet", "policies are no tables", hint=hint)
            return ()
        from probes.monitor.policy import Policy

        found: dict[str, Policy] = {}
        for number, table in enumerate(tables, 1):
            name = table.get("name")
            where = f"policy {name if isinstance(name, str) else number}"
            self._known(where, table, _POLICY)
            if missing := [key for key in ("name", "condition", "policy") if key not in table]:
                self._wrong(where, f"has no {', '.join(missing)}")
                continue
            data = {key: table[key] for key in ("name", "condition", "hold") if key in table}
            try:
                policy = Policy.parse(data | {"run": [table["policy"]]}, self._place(where))
            except ProbedeckError as error:
                self._mistakes.append(error)
                continue
            try:
                _check(policy, hosts)
            except UsageError as error:
                self._wrong(where, error.message, error.hint)
            if policy.name in found:
                self._wrong(where, "is named twice")
            found[policy.name] = policy
        return tuple(found.values())

    def _known(self, where: str, table: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        for key in table:
            if key not in keys:
                self._wrong(where, f"unknown key {key[:63]!r}", hint=did_you_mean(key, keys))

    def _wrong(self, where: str, text: str, hint: str = "") -> None:
        self._mistakes.append(UsageError(f"{self._place(where)}: {text}", hint=hint))

    def _place(self, where: str) -> str:
        return f"{self._document.path}: {where}".rstrip(": ")
