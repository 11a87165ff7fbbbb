"""Kinds of fields: their values, and tests of rows and packets."""

from probes.filter.fields.field import Field, Test, Value, plain
from probes.filter.fields.icmp import IcmpIdentifiers, IcmpTypes
from probes.filter.fields.numbers import InterfaceNames, Quantity, Texts, passing, times
from probes.filter.fields.packet import (
    ENDS,
    Addresses,
    Codes,
    Flags,
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
