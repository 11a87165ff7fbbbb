"""Layouts by BTF against gcc, and layouts by bcc's own description against ctypes."""

from __future__ import annotations

import ctypes as ct
import json
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.maps.layout import CType, described

FOR_GCC = """
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
typedef uint8_t u8; typedef uint16_t u16; typedef uint32_t u32; typedef unsigned long long u64;
"""
TYPES = """
struct inner { u8 a; u32 b; };
union un { u8 c; u64 d; u16 e[3]; };
struct packed { u8 a; u32 b; u16 c; } __attribute__((packed));
struct plain { u8 a; u64 b; struct inner in; u16 arr[3]; union un u; };
struct wide { unsigned __int128 ip; u8 p; };
struct anonymous { struct { u8 q; u32 r; }; union { u32 s; u8 t[4]; }; void *ptr; };
struct arrays { struct inner ia[4]; char name[16]; _Bool f; signed char sc; short ss; long l; };
struct holds_packed { struct packed p; u32 q; };
struct aligned { u8 a; u64 b; } __attribute__((aligned(32)));
struct union_of_struct { union { struct inner i; u8 bytes[9]; } x[2]; u8 z; };
struct bits { u8 a:1; u8 b:7; u16 c:12; u16 d:4; u32 e:1; u8 f; };
struct wide_bits { u32 a; u64 b:40; u64 c:24; };
struct zero_bits { u32 a:3; u32 :0; u32 b:9; };
struct unnamed_bits { u8 a; u64 :30; u16 b:3; };
struct beside_bits { u32 x:3; struct inner in; };
"""


def dtype_of(descriptor: str) -> np.dtype[Any]:
    """The layout that bcc describes, without BTF."""
    return described(descriptor).dtype


def generated_bits(count: int) -> str:
    """Structs of random bit fields, some with other members between."""
    chance = random.Random(7)
    text = ""
    for number in range(count):
        members = ""
        for name in "abcdef"[: chance.randint(1, 6)]:
            bits = chance.choice([8, 16, 32, 64])
            width = f":{chance.randint(1, bits)}" if chance.random() < 0.8 else ""
            members += f" u{bits} {name}{width};"
        text += f"struct bits{number} {{{members} }};\n"
    return text


def generated_mixed(count: int) -> str:
    """Structs of random members of any sort, every other one packed, anonymous ones between."""
    chance = random.Random(11)

    def members(names: Iterator[str], depth: int) -> str:
        text = ""
        for _ in range(chance.randint(1, 4)):
            sort = chance.random()
            if sort < 0.2 and depth < 2:
                kind = chance.choice(["struct", "union"])
                text += f" {kind} {{{members(names, depth + 1)} }};"
            elif sort < 0.3:
                text += f" _Bool {next(names)}:1;"
            elif sort < 0.6:
                bits = chance.choice([8, 16, 32, 64])
                text += f" u{bits} {next(names)}:{chance.randint(1, bits)};"
            else:
                dimensions = "".join(
                    f"[{chance.randint(1, 3)}]" for _ in range(chance.choice([0, 0, 1, 2]))
                )
                text += f" u{chance.choice([8, 16, 32, 64])} {next(names)}{dimensions};"
        return text

    text = ""
    for number in range(count):
        names = (f"m{i}" for i in range(1000))
        packed = " __attribute__((packed))" if number % 2 else ""
        text += f"struct mixed{number} {{{members(names, 0)} }}{packed};\n"
    return text


TYPES += generated_bits(40) + generated_mixed(40)
NAMES = [line.split(" {")[0] for line in TYPES.split("\n") if line]


@pytest.fixture(scope="module")
def c_types(compiler: Compiler) -> dict[str, CType]:
    """Each type, from the BTF of a map of it."""
    maps = "\n".join(f"BPF_HASH(m{i}, u32, {name}, 1);" for i, name in enumerate(NAMES))
    source = f"{TYPES}{maps}\nint f(struct xdp_md *ctx) {{ return XDP_PASS; }}\n"
    with compiler.compile(source, ProgType.XDP) as compiled:
        values = {name: compiled.maps[f"m{i}"].value_type for i, name in enumerate(NAMES)}
    return {name: value for name, value in values.items() if value is not None}


@pytest.fixture(scope="module")
def dtypes(c_types: dict[str, CType]) -> dict[str, np.dtype[Any]]:
    """The layout of each type."""
    return {name: type_.dtype for name, type_ in c_types.items()}


@pytest.fixture(scope="module")
def truth(
    dtypes: dict[str, np.dtype[Any]], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], str]:
    """By (type, member) what gcc says: "offset size" of a member, the size of "" (the type).

    For a bit field it is a structure, in hexadecimal, in which all bits of the field are set.
    """
    lines = []
    for name, dtype in dtypes.items():
        lines.append(f'printf("{name}||%zu\\n", sizeof({name}));')
        for member in leaves(dtype):
            if is_bit_field(name, member):
                lines.append(
                    f"{{ {name} v; memset(&v, 0, sizeof v); v.{member} = -1; "
                    f'printf("{name}|{member}|"); for (size_t i = 0; i < sizeof v; i++) '
                    f'printf("%02x", ((u8 *)&v)[i]); puts(""); }}'
                )
            else:
                lines.append(
                    f'printf("{name}|{member}|%zu %zu\\n", '
                    f"offsetof({name}, {member}), sizeof((({name} *)0)->{member}));"
                )
    where = tmp_path_factory.mktemp("truth")
    source = Path(where, "truth.c")
    source.write_text(FOR_GCC + TYPES + "int main(void) {\n" + "\n".join(lines) + "\n}\n")
    subprocess.run(["gcc", "-w", "-o", where / "truth", source], check=True)
    output = subprocess.run([where / "truth"], check=True, capture_output=True, text=True).stdout
    found = (line.split("|") for line in output.splitlines())
    return {(name, member): value for name, member, value in found}


def is_bit_field(name: str, member: str) -> bool:
    declaration = next(line for line in TYPES.split("\n") if line.startswith(f"{name} {{"))
    return f" {member}:" in declaration


def leaves(dtype: np.dtype[Any]) -> dict[str, tuple[int, int]]:
    """Offset and size of every member by its C path; an array's first element stands for all."""

    def walk(inner: np.dtype[Any], prefix: str, start: int) -> Iterator[tuple[str, Any]]:
        for name, field in (inner.fields or {}).items():
            member, offset = field[0], start + field[1]
            yield prefix + name, (offset, member.itemsize)
            element = "[0]" * len(member.shape)
            yield from walk(member.base, f"{prefix}{name}{element}.", offset)

    return dict(walk(dtype, "", 0))


@pytest.mark.parametrize("name", NAMES)
def test_every_member_lies_where_the_compiler_put_it(
    name: str, c_types: dict[str, CType], truth: dict[tuple[str, str], str]
) -> None:
    """S1.10: gcc and clang agree, to the bit."""
    type_ = c_types[name]
    dtype = type_.dtype
    assert dtype.itemsize == int(truth[name, ""])
    members = leaves(dtype)
    assert members
    assert not any("__pad_" in member for member in members)
    for member, (offset, size) in members.items():
        if is_bit_field(name, member):
            image = int.from_bytes(bytes.fromhex(truth[name, member]), "little")
            bits = type_.members[member].bits
            assert bits is not None
            shift, width = bits
            assert image == (1 << width) - 1 << (8 * offset + shift)
            assert shift + width <= 8 * size
        else:
            assert truth[name, member] == f"{offset} {size}"


def test_scalars_are_numbers_of_their_size_and_sign() -> None:
    kinds = {
        "char": "i1", "unsigned char": "u1", "short": "i2", "unsigned int": "u4", "long": "i8",
        "unsigned long long": "u8", "unsigned __int128": "V16", "struct x *": "u8", "_Bool": "?",
    }  # fmt: skip
    assert {name: dtype_of(json.dumps(name)) for name in kinds} == {
        name: np.dtype(code) for name, code in kinds.items()
    }


def test_arrays_keep_all_their_dimensions() -> None:
    dtype = dtype_of('["s", [["m", "unsigned short", [2, 3]]], "struct"]')
    assert dtype["m"].shape == (2, 3)
    assert dtype.itemsize == 12


def test_members_of_an_anonymous_struct_belong_to_what_encloses_it(
    dtypes: dict[str, np.dtype[Any]],
) -> None:
    assert dtypes["struct anonymous"].names == ("q", "r", "s", "t", "ptr")


def test_values_are_read_through_the_layout(dtypes: dict[str, np.dtype[Any]]) -> None:
    value = np.zeros(1, dtypes["struct plain"])
    value["in"]["b"] = 0x01020304
    value["u"]["d"] = 0x1122
    assert value.tobytes()[20:24] == bytes([4, 3, 2, 1])
    assert value["u"]["c"] == 0x22


@pytest.mark.parametrize(
    ("descriptor", "message"),
    [
        ('"struct foo"', "struct foo"),
        ('["s", [["a", ["t", [["b", "complex"]], "struct"]]], "struct"]', r"s\.a\.b: .*complex"),
        ('["s", [["a", ["t", [["b", "int"]], "class"]]], "struct"]', r"s\.a: .*class"),
        ("", "does not describe"),
    ],
)
def test_an_unknown_type_is_told_by_its_member(descriptor: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dtype_of(descriptor)


SCALARS = {
    "_Bool": ct.c_bool, "char": ct.c_byte, "unsigned char": ct.c_uint8, "short": ct.c_int16,
    "unsigned short": ct.c_uint16, "int": ct.c_int32, "unsigned int": ct.c_uint32,
    "long long": ct.c_int64, "unsigned long long": ct.c_uint64, "double": ct.c_double,
}  # fmt: skip


Described = tuple[Any, type[Any]]
"""A descriptor and the same type in ctypes."""


@st.composite
def records(draw: st.DrawFn, content: st.SearchStrategy[Described]) -> Described:
    members: list[Any] = []
    fields: list[Any] = []
    kind = draw(st.sampled_from(["struct", "union"]))
    for number, (descriptor, ctype) in enumerate(draw(st.lists(content, min_size=1, max_size=5))):
        name = f"m{number}"
        dimensions = draw(st.lists(st.integers(1, 3), max_size=2))
        for size in reversed(dimensions):
            ctype = ctype * size
        members.append([name, descriptor, dimensions] if dimensions else [name, descriptor])
        fields.append((name, ctype))
    base = ct.Structure if kind == "struct" else ct.Union
    return ["t", members, kind], type("T", (base,), {"_fields_": fields})


def any_type() -> st.SearchStrategy[Described]:
    scalars = st.sampled_from(sorted(SCALARS)).map(lambda name: (name, SCALARS[name]))
    return st.recursive(scalars, records, max_leaves=12)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(any_type())
def test_generated_types_have_the_layout_of_ctypes(case: Described) -> None:
    descriptor, ctype = case
    dtype = dtype_of(json.dumps(descriptor))
    assert dtype.itemsize == ct.sizeof(ctype)
    for name, field in (dtype.fields or {}).items():
        place = getattr(ctype, name)
        assert (field[1], field[0].itemsize) == (place.offset, place.size)
