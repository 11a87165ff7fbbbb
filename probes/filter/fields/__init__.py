"""Kinds of fields: their values, and tests of rows and packets."""

from probes.filter.fields.numbers import (
    Field,
    InterfaceNames,
    Quantity,
    Test,
    Texts,
    Value,
    passing,
    plain,
    times,
)
from probes.filter.fields.packet import (
    ENDS,
    Addresses,
    Codes,
    Flags,
    IcmpIdentifiers,
    IcmpTypes,
    Ports,
    Vlans,
    ip_version,
    protocol,
)

__all__ = [
    "ENDS",
    "Addresses",
    "Codes",
    "Field",
    "Flags",
    "IcmpIdentifiers",
    "IcmpTypes",
    "InterfaceNames",
    "Ports",
    "Quantity",
    "Test",
    "Texts",
    "Value",
    "Vlans",
    "ip_version",
    "passing",
    "plain",
    "protocol",
    "times",
]
