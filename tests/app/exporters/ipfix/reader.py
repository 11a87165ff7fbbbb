"""A strict reader of IPFIX and NetFlow v9, written from the RFCs alone."""

from __future__ import annotations

import ipaddress
import struct
from collections import Counter
from dataclasses import dataclass, field

Field = tuple[int, int, int]
"""Enterprise, element, length."""
Record = dict[tuple[int, int], bytes]
"""Value by (enterprise, element); of an element that stands twice, the last one."""


@dataclass
class Reader:
    """Keeps templates and sequences of one transport session, and asserts that they are right."""

    templates: dict[tuple[int, int], list[Field]] = field(default_factory=dict)
    """By observation domain and number."""
    scopes: dict[tuple[int, int], int] = field(default_factory=dict)
    flows: list[Record] = field(default_factory=list)
    options: list[Record] = field(default_factory=list)
    sequences: dict[int, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    sent_templates: Counter[int] = field(default_factory=Counter)

    def read(self, data: bytes) -> None:
        """Read one message."""
        self.sizes.append(len(data))
        version = struct.unpack_from(">H", data)[0]
        if version == 10:
            _, length, _, sequence, domain = struct.unpack_from(">HHIII", data)
            assert length == len(data)
            at = 16
        else:
            _, count, _, _, sequence, domain = struct.unpack_from(">HHIIII", data)
            assert version == 9
            assert len(data) % 4 == 0
            at = 20
        assert self.sequences.setdefault(domain, sequence) == sequence
        records = templates = 0
        while at < len(data):
            number, length = struct.unpack_from(">HH", data, at)
            assert 4 <= length <= len(data) - at
            body = data[at + 4 : at + length]
            if number < 256:
                templates += self._learn(domain, number, body, version)
            else:
                records += self._records(domain, number, body)
            at += length
        if version == 9:
            assert records + templates == count
        self.sequences[domain] = (sequence + (records if version == 10 else 1)) & 0xFFFFFFFF

    def stream(self, data: bytes) -> bytes:
        """Read the messages of a connection; returns the part of a message at the end."""
        while len(data) >= 16:
            length = int.from_bytes(data[2:4], "big")
            if len(data) < length:
                break
            self.read(data[:length])
            data = data[length:]
        return data

    def _learn(self, domain: int, set_number: int, body: bytes, version: int) -> int:
        is_options = set_number in (1, 3)
        assert set_number in ((2, 3) if version == 10 else (0, 1))
        at = learned = 0
        while len(body) - at >= 4 and any(body[at:]):
            number, count = struct.unpack_from(">HH", body, at)
            at += 4
            scope = 0
            if is_options and version == 10:
                scope = struct.unpack_from(">H", body, at)[0]
                at += 2
            if is_options and version == 9:
                scope_bytes, (option_bytes,) = count, struct.unpack_from(">H", body, at)
                at += 2
                scope, count = scope_bytes // 4, (scope_bytes + option_bytes) // 4
            fields: list[Field] = []
            for _ in range(count):
                element, length = struct.unpack_from(">HH", body, at)
                at += 4
                enterprise = 0
                if element & 0x8000:
                    assert version == 10
                    (enterprise,) = struct.unpack_from(">I", body, at)
                    at += 4
                fields.append((enterprise, element & 0x7FFF, length))
            assert number >= 256
            self.templates[domain, number] = fields
            self.scopes[domain, number] = scope
            self.sent_templates[number] += 1
            learned += 1
        return learned

    def _records(self, domain: int, number: int, body: bytes) -> int:
        fields = self.templates[domain, number]
        least = sum(1 if length == 0xFFFF else length for _, _, length in fields)
        at = count = 0
        while len(body) - at >= least:
            record: Record = {}
            for enterprise, element, length in fields:
                if length == 0xFFFF:
                    length, at = body[at], at + 1
                    if length == 255:
                        (length,), at = struct.unpack_from(">H", body, at), at + 2
                assert at + length <= len(body)
                record[enterprise, element] = body[at : at + length]
                at += length
            (self.options if self.scopes[domain, number] else self.flows).append(record)
            count += 1
        assert not any(body[at:])
        assert len(body) - at < 4
        return count

    def sums(self) -> tuple[int, int, int]:
        """Return records of flows, their packets and bytes."""
        return (
            len(self.flows),
            sum(number(record, 2) for record in self.flows),
            sum(number(record, 1) for record in self.flows),
        )


def number(record: Record, element: int, enterprise: int = 0) -> int:
    return int.from_bytes(record[enterprise, element], "big")


def text(record: Record, element: int, enterprise: int) -> str:
    return record[enterprise, element].decode()


def addresses(record: Record) -> tuple[str, str]:
    four = (0, 8) in record
    ends = ((0, 8), (0, 12)) if four else ((0, 27), (0, 28))
    first, last = (str(ipaddress.ip_address(record[end])) for end in ends)
    return first, last
