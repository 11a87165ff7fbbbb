"""Entries of maps as operators write them: the inverse of `probes.tables.conversion`."""

from __future__ import annotations

import ipaddress
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from bpf.arrays import Array
from bpf.compiler import CompiledMap
from bpf.errors import UsageError, did_you_mean
from bpf.maps.kinds import Shape
from probes.tables.conversion import objects, schema_of
from probes.tables.field_types import FIELD_TYPES, MAPPED

DType = np.dtype[Any]


def value_of(text: str) -> Any:
    """Return the JSON value that a text is, or else the text itself.

    So `80`, `{"port": 80}` and `192.0.2.1` need no quotes on a command line.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(text: str) -> NoReturn:
    raise ValueError(text)  # JSON has no NaN and no Infinity.


class EntryCodec:
    """Turns keys and values of one map into its bytes, and its rows into keys and values."""

    def __init__(self, declared: CompiledMap, types: Mapping[str, str] | None = None) -> None:
        """`types` are types of fields by path. Raises UsageError if one does not fit its field."""
        self._spec = declared.spec
        self._schema = schema_of(declared, types)
        self._key, self._value = declared.key, declared.value

    def key(self, given: Any, where: str) -> bytes:
        """Return the bytes of a key. Raises UsageError, `where` before it, if `given` is no key."""
        if self._spec.kind.shape == Shape.ARRAY:
            return self._packed("index", np.dtype("u4"), given, where, self._spec.max_entries)
        return self._packed("key", self._key, given, where)

    def value(self, given: Any, where: str) -> bytes:
        return self._packed("value", self._value, given, where)

    def objects(self, rows: Array) -> list[dict[str, Any]]:
        """Return rows of dtype `[("key", K), ("value", V)]` as tables export them."""
        return list(objects(self._schema, rows, time.time_ns() - time.monotonic_ns()))

    def _packed(
        self, path: str, dtype: DType | None, given: Any, where: str, most: int = 0
    ) -> bytes:
        assert dtype is not None
        buffer = bytearray(dtype.itemsize)
        try:
            self._put(buffer, path, dtype, given)
            if most and int.from_bytes(buffer, sys.byteorder) >= most:
                raise UsageError(f"{path}: {given} is none of 0 to {most - 1}")
        except UsageError as error:
            raise UsageError(f"{where}: {error.message}", hint=error.hint) from None
        return bytes(buffer)

    def _put(self, buffer: memoryview | bytearray, path: str, dtype: DType, given: Any) -> None:
        """Write `given` for the field at `path` into `buffer`, which has the field's length."""
        kind = self._schema.fields.get(path, "")
        signed = kind == "signed" or dtype.kind == "i"
        if place := self._schema.bits.get(path):
            shift, width = place
            mask = (1 << width) - 1
            number = self._number(path, given, width, signed) & mask
            word = int.from_bytes(buffer, sys.byteorder) & ~(mask << shift) | number << shift
            buffer[:] = word.to_bytes(len(buffer), sys.byteorder)
        elif kind in _PARSERS and FIELD_TYPES[kind].takes(dtype):
            try:
                raw = _PARSERS[kind](given, len(buffer))
            except (ValueError, TypeError, OverflowError):
                what = f"{str(given)[:60]!r} is not of type {kind}, {FIELD_TYPES[kind].needs}"
                raise UsageError(f"{path}: {what}") from None
            buffer[:] = raw
        elif dtype.shape:
            element = np.dtype((dtype.base, dtype.shape[1:]))
            if not isinstance(given, list | tuple) or len(given) != dtype.shape[0]:
                raise UsageError(f"{path}: it is a list of {dtype.shape[0]}")
            for at, each in enumerate(given):
                part = memoryview(buffer)[at * element.itemsize : (at + 1) * element.itemsize]
                self._put(part, f"{path}[]", element, each)
        elif dtype.names is not None:
            names = dtype.names
            if not isinstance(given, Mapping):
                raise UsageError(f"{path}: it has fields, such as {{{', '.join(names)}}}")
            for name, each in given.items():
                if name not in names:
                    hint = did_you_mean(name, sorted(names))
                    raise UsageError(f"{path}: no field {name[:60]!r}", hint=hint)
                field, offset = (dtype.fields or {})[name][:2]
                part = memoryview(buffer)[offset : offset + field.itemsize]
                self._put(part, f"{path}.{name}", field, each)
        elif dtype.kind == "f":
            if isinstance(given, bool) or not isinstance(given, int | float):
                raise UsageError(f"{path}: {str(given)[:60]!r} is no number")
            buffer[:] = np.array(given, dtype).tobytes()
        else:
            number = self._number(path, given, 8 * len(buffer), signed)
            buffer[:] = number.to_bytes(len(buffer), sys.byteorder, signed=signed)

    def _number(self, path: str, given: Any, bits: int, signed: bool) -> int:
        """Return a whole number of so many bits; enumerators go by name, too."""
        names = {name: number for number, name in self._schema.names.get(path, {}).items()}
        number = names.get(given, given) if isinstance(given, str) else given
        if isinstance(number, str):
            try:
                number = int(number, 0)
            except ValueError:
                hint = did_you_mean(given, sorted(names)) if names else ""
                raise UsageError(f"{path}: {given[:60]!r} is no whole number", hint=hint) from None
        if not isinstance(number, int):
            raise UsageError(f"{path}: {str(given)[:60]!r} is no whole number")
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        if not low <= number <= high:
            raise UsageError(f"{path}: {number} is none of {low} to {high}")
        return int(number)


def _prefix(given: Any, size: int) -> bytes:
    kind = ipaddress.IPv4Network if size == 8 else ipaddress.IPv6Network
    network = kind(_text(given))
    return network.prefixlen.to_bytes(4, sys.byteorder) + network.network_address.packed


def _ipv6(given: Any, _: int) -> bytes:
    address = ipaddress.ip_address(_text(given))
    return address.packed if address.version == 6 else MAPPED + address.packed


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given


def _padded(given: Any, size: int) -> bytes:
    raw = _text(given).encode()
    if len(raw) > size:
        raise ValueError
    return raw.ljust(size, b"\0")


def _exactly(raw: bytes, size: int) -> bytes:
    if len(raw) != size:
        raise ValueError
    return raw


def _whole(given: Any) -> int:
    if isinstance(given, float):
        raise TypeError
    return int(given, 0) if isinstance(given, str) else int(given)


_PARSERS: Mapping[str, Callable[[Any, int], bytes]] = {
    "ipv4": lambda given, _: ipaddress.IPv4Address(_text(given)).packed,
    "ipv4-host": lambda given, size: int(ipaddress.IPv4Address(_text(given))).to_bytes(
        size, sys.byteorder
    ),
    "ipv6": _ipv6,
    "mac": lambda given, size: _exactly(bytes.fromhex(_text(given).replace(":", "")), size),
    "prefix": _prefix,
    "be": lambda given, size: _whole(given).to_bytes(size, "big"),
    "text": _padded,
    "hex": lambda given, size: (
        _exactly(bytes.fromhex(_text(given)), size)
        if not _text(given).startswith("0x")
        else int(given, 16).to_bytes(size, sys.byteorder)
    ),
}
"""Parsers from a table's text to a field's bytes, by FIELD_TYPES; other types are C numbers."""
