"""Numbers that are put into compiled instructions: descriptors of maps, and constants.

`CONSTANT(NAME)` in a source stands for the number of a macro. The compiler sees a load of a marker,
and whoever loads the program replaces the marker by the number. So the compiled program fits every
number, such as the secrets of a run, and the verifier sees a constant. The number cannot be the
size of an array or a part of an `#if`.

The compile helper loads this module, too: it imports nothing of probedeck.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Mapping

_USE = re.compile(r"\bCONSTANT\((\w+)\)")
_NUMBER = re.compile(r"-D(\w+)=(-?(?:0x)?[0-9a-fA-F]+)[uUlL]*")
_NAMES = re.compile(r"\w+")
_WORD = (1 << 64) - 1
_LD_IMM64 = 0x18
_PSEUDO_MAP_FD, _PSEUDO_MAP_VALUE = 1, 2


def relocate(instructions: bytes, places: Mapping[int, int]) -> bytes:
    """Return `instructions` with every map reference `old` replaced by `places[old]`.

    A map reference is an ld_imm64 with source register 1 (BPF_PSEUDO_MAP_FD), or 2 for a place in a
    value (BPF_PSEUDO_MAP_VALUE). Its second half is no instruction, but has the operation code 0.
    """
    code = bytearray(instructions)
    for at in range(0, len(code), 8):
        if code[at] == _LD_IMM64 and code[at + 1] >> 4 in (_PSEUDO_MAP_FD, _PSEUDO_MAP_VALUE):
            (old,) = struct.unpack_from("<i", code, at + 4)
            struct.pack_into("<i", code, at + 4, places[old])
    return bytes(code)


def take_constants(flat: str, flags: Iterable[str]) -> tuple[str, list[str], dict[int, int]]:
    """Return a source with markers, the flags that remain, and the number of each marker.

    A name that no flag defines stays in the source. A number that the source does not name is
    dropped: it may differ from run to run. Names with `_` in front are of other headers.
    """
    names, words = set(_USE.findall(flat)), set(_NAMES.findall(flat))
    rest, values = [], {}
    for flag in flags:
        number = _NUMBER.fullmatch(flag)
        if number and number[1] in names:
            values[number[1]] = int(number[2], 0) & _WORD
        elif not number or number[1][0] == "_" or number[1] in words:
            rest.append(flag)

    def load(match: re.Match[str]) -> str:
        if (name := match[1]) not in values:
            return name
        asm = f'asm volatile("%0 = {_marker(name)} ll" : "=r"(_constant))'
        return f"({{ unsigned long long _constant; {asm}; _constant; }})"

    flat = _USE.sub(load, flat)
    return flat, rest, {_marker(name): value for name, value in values.items()}


def place_constants(code: bytes, constants: Mapping[int, int]) -> bytes:
    """Return instructions with the numbers in place of their markers."""
    for marker, value in constants.items():
        code = code.replace(_halves(marker), _halves(value))
    return code


def _halves(number: int) -> bytes:
    """The number in an `ld_imm64`: the second half of its first word to the end of its second."""
    word = number.to_bytes(8, "little")
    return word[:4] + bytes(4) + word[4:]


def _marker(name: str) -> int:
    """A number of 63 bits that no program has by chance."""
    digest = hashlib.sha256(f"probedeck constant {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
