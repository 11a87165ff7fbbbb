"""Kinds of fields: their values, and tests of rows and packets."""

from probes.filter.fields.field import Field, Test, Value, plain
from probes.filter.fields.icmp import IcmpIdentifiers, IcmpTypes
from probes.filter.fields.numbers import BIT_RATES, PLAIN, RATES, SHARES, SIZES, Quantity, times
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
from probes.filter.fields.texts import Texts, passing

__all__ = [
    "BIT_RATES",
    "ENDS",
    "PLAIN",
    "RATES",
    "SHARES",
    "SIZES",
    "Addresses",
    "Codes",
    "Field",
    "Flags",
    "IcmpIdentifiers",
    "IcmpTypes",
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
