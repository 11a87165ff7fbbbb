"""BTF: reading finds the values that programs store by name; malformed BTF is refused."""

from __future__ import annotations

import contextlib
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf.abi import ProgType
from bpf.compiler import CompiledMap, Compiler
from bpf.maps.btf import Btf
from bpf.maps.layout import CType
from bpf.maps.map import Map
from bpf.syscall import btf_data, prog_test_run
from tests.support.nobody import without_sys_admin

ROOT = Path(__file__).parents[3]

PROGRAM = """
int program(struct xdp_md *ctx)
{
    u32 key = 0;
    %s value = {};
    %s
    m.update(&key, &value);
    return XDP_PASS;
}
"""


def fields(type_: CType, raw: bytes) -> Any:
    """A value as plain Python, straight from its bytes: apart from how the product converts."""
    if type_.element is not None:
        size = type_.element.dtype.itemsize
        count = type_.dtype.shape[0]
        return [fields(type_.element, raw[size * i : size * (i + 1)]) for i in range(count)]
    if not type_.members:
        return int.from_bytes(raw[: type_.dtype.itemsize], "little", signed=type_.dtype.kind == "i")
    found = {}
    for name, member in type_.members.items():
        part = raw[member.offset : member.offset + member.dtype.itemsize]
        if member.bits is None:
            found[name] = fields(member.type, part)
            continue
        shift, width = member.bits
        number = int.from_bytes(part, "little") >> shift & (1 << width) - 1
        signed = member.type.dtype.kind == "i" and number >> (width - 1)
        found[name] = number - (1 << width) if signed else number
    return found


class Stored:
    """A map in which a program has stored one value."""

    def __init__(self, compiler: Compiler, types: str, type_: str, code: str) -> None:
        source = f"{types}\nBPF_ARRAY(m, {type_}, 1);\n" + PROGRAM % (type_, code)
        with compiler.compile(source, ProgType.XDP) as compiled:
            prog_test_run(compiled.programs["program"].fd, bytes(64))
            found = compiled.maps["m"]
            assert found.value_type is not None, found.unreadable
            self.type = found.value_type
            with Map(os.dup(found.fd), found.spec, found.key, found.value) as map_:
                self.raw = map_.read().values.tobytes()

    @property
    def fields(self) -> Any:
        return fields(self.type, self.raw)


HEADERS = (
    "#include <uapi/linux/if_ether.h>\n#include <uapi/linux/ip.h>\n#include <uapi/linux/ipv6.h>\n"
    "#include <uapi/linux/tcp.h>\n"
)
BIG_ENDIAN_FIRST = """
struct v {
#if defined(__BIG_ENDIAN_BITFIELD)
    u8 version:4, ihl:4;
#else
    u8 ihl:4, version:4;
#endif
};
"""


@pytest.mark.parametrize(
    ("types", "type_", "stored"),
    [
        (BIG_ENDIAN_FIRST, "struct v", {"ihl": 5, "version": 4}),
        ("struct v { union { u32 v4; u64 w; }; u8 proto:4, ver:4; };", "struct v",
         {"w": 2**40, "proto": 6, "ver": 4}),
        ("struct v { struct { u8 a; u16 b; }; u32 c:3, d:29; };", "struct v",
         {"a": 1, "b": 2, "c": 5, "d": 2**28 + 3}),
        ("struct v { bool a:1, b:1, c:1; bool whole; };", "struct v",
         {"a": 0, "b": 1, "c": 0, "whole": 1}),
        ("struct v { u8 a:6; u8 b:8; } __attribute__((packed));", "struct v", {"a": 9, "b": 101}),
        ("struct v { u8 x; u64 a:48; u64 b:48; u16 c; } __attribute__((packed));", "struct v",
         {"x": 1, "a": 2**47 + 1, "b": 2**46 + 5, "c": 7}),
        ("struct v { s8 x:3; s32 y:31; s64 z:33; int w; } __attribute__((packed));", "struct v",
         {"x": -4, "y": -5, "z": -(2**32), "w": -1}),
        ("struct v { unsigned __int128 a; __int128 b; long c; };", "struct v",
         {"a": 7, "b": 5, "c": -9}),
        ("enum e { LOW = -5, HIGH = 3 }; struct v { enum e e; enum e f:4; char c; s8 d; };",
         "struct v", {"e": -5, "f": -5, "c": -2, "d": -3}),
        ("typedef u16 port_t; typedef volatile port_t fixed_t; struct v { fixed_t p; };",
         "struct v", {"p": 65535}),
        (HEADERS, "struct iphdr",
         {"ihl": 5, "version": 4, "tos": 8, "tot_len": 100, "ttl": 64, "saddr": 9, "daddr": 10}),
        (HEADERS, "struct tcphdr",
         {"source": 80, "seq": 7, "doff": 5, "syn": 1, "ack": 0, "cwr": 1, "window": 512}),
        (HEADERS, "struct ethhdr", {"h_proto": 0x0800}),
        (HEADERS, "struct ipv6hdr", {"version": 6, "priority": 3, "hop_limit": 64}),
    ],
)  # fmt: skip
def test_what_a_program_stores_by_name_is_what_is_read(
    compiler: Compiler, types: str, type_: str, stored: dict[str, int]
) -> None:
    """S1.10: bit fields wherever they lie, kernel structs, signs, 128 bits."""
    code = " ".join(f"value.{name} = {number};" for name, number in stored.items())
    found = Stored(compiler, types, type_, code).fields
    assert {name: found[name] for name in stored} == stored


@pytest.mark.parametrize(
    ("declaration", "shape"),
    [
        ("u32 x[2][3];", (2, 3)),
        ("u64 x[2][1][2];", (2, 1, 2)),
        ("char x[2][8];", (2, 8)),
        ("u16 x[sizeof(u64)];", (8,)),
        ("mac_t x;", (6,)),
        ("mac_t x[2];", (2, 6)),
        ("rows_t x[2];", (2, 3, 2)),
    ],
)
def test_arrays_have_all_their_dimensions(
    compiler: Compiler, declaration: str, shape: tuple[int, ...]
) -> None:
    types = "typedef u8 mac_t[6];\ntypedef u16 pair_t[2];\ntypedef pair_t rows_t[3];\n"
    code = "".join(
        "value.x" + "".join(f"[{i}]" for i in place) + f" = {number + 1};"
        for number, place in enumerate(np.ndindex(shape))
    )
    stored = Stored(compiler, f"{types}struct v {{ u8 before; {declaration} }};", "struct v", code)
    expected = np.arange(1, np.prod(shape) + 1).reshape(shape)
    assert stored.fields["x"] == expected.tolist()
    assert stored.type.dtype["x"].shape == shape


def test_typedefs_and_enumerators_are_told(compiler: Compiler) -> None:
    types = (
        "typedef __be32 ip_t;\nenum e { A = 1, B = -2, C = 1 };\n"
        "struct v { ip_t who; enum e e; struct { u8 x; } in; struct v2 *next; };\n"
    )
    type_ = Stored(compiler, types, "struct v", "").type
    who, state = type_.members["who"].type, type_.members["e"].type
    assert who.names == ("ip_t", "__be32", "__u32", "unsigned int")
    assert state.names == ("enum e",)
    assert state.enumerators == {"A": 1, "B": -2, "C": 1}
    assert state.dtype == np.dtype("i4")
    assert type_.names == ("struct v",)
    assert type_.members["in"].type.names == ("struct",)
    assert type_.members["next"].type.dtype == np.dtype("u8")


@pytest.mark.parametrize("macro", ["BPF_QUEUE(m, struct v, 4);", "BPF_STACK(m, struct v, 4);"])
def test_a_queue_has_its_types_too(compiler: Compiler, macro: str) -> None:
    """bcc gives them to no queue in the kernel."""
    source = f"struct v {{ u8 a:4, b:4; __be32 ip; }};\n{macro}\n"
    with compiler.compile(source + "int f(struct xdp_md *c) { return 2; }", ProgType.XDP) as made:
        found = made.maps["m"]
    assert found.key_type is None
    assert found.value_type is not None
    assert found.value_type.members["b"].bits == (4, 4)
    assert found.value_type.members["ip"].type.names[0] == "__be32"


def compiled_map(compiler: Compiler, source: str) -> CompiledMap:
    program = "\nint f(struct xdp_md *c) { return 2; }\n"
    with compiler.compile(source + program, ProgType.XDP) as compiled:
        assert bool(compiled.btf_fd) == ("double" not in source)
        return compiled.maps["m"]


def test_without_btf_bcc_describes_what_it_can(compiler: Compiler) -> None:
    """A double keeps libbcc from loading BTF. Earlier sources' types are not taken for its own."""
    compiled_map(compiler, "struct v { u32 b; u32 a; };\nBPF_HASH(m, u32, struct v);")
    found = compiled_map(
        compiler,
        "struct v { u32 a; u32 b; };\nBPF_HASH(m, u32, struct v);\nBPF_HASH(x, u32, double);",
    )
    assert found.value is not None
    assert found.value.names == ("a", "b")


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        ("u8 a:4, b:4;", "v.a: a bit field whose place is not known"),
        ("u32 x[2][3];", "its value has 32 bytes, of which 16 are described"),
        ("u16 y[sizeof(u64)];", "bcc does not describe its type"),
    ],
)
def test_without_btf_what_bcc_describes_wrongly_is_not_read(
    compiler: Compiler, member: str, reason: str
) -> None:
    """S1.10: no value rather than a wrong one."""
    found = compiled_map(
        compiler, f"struct v {{ double d; {member} }};\nBPF_HASH(m, u32, struct v);"
    )
    assert found.value is None
    assert reason in found.unreadable
    assert "no BTF: a float, a double" in found.unreadable


def test_an_enum_of_64_bits_is_told_or_not_read(compiler: Compiler) -> None:
    """Before LLVM 15 a compiler writes half of each value, later ones keep libbcc from loading."""
    source = "enum e { BIG = 0x123456789AULL };\nstruct v { enum e e; };\n"
    program = "BPF_HASH(m, u32, struct v);\nint f(struct xdp_md *c) { return 2; }\n"
    with compiler.compile(source + program, ProgType.XDP) as compiled:
        found = compiled.maps["m"]
    if found.value_type is None:
        assert "enum e has 64 bits" in found.unreadable
    else:
        assert found.value == np.dtype([("e", "u8")])
        assert found.value_type.members["e"].type.enumerators in ({}, {"BIG": 0x123456789A})


@pytest.fixture(scope="module")
def blob(compiler: Compiler) -> bytes:
    source = (
        "enum e { A, B = -1 };\nstruct v { enum e e; u8 a:3; char name[2][3]; void *p; };\n"
        "BPF_HASH(m, u32, struct v);\nint f(struct xdp_md *ctx) { return 2; }\n"
    )
    with compiler.compile(source, ProgType.XDP) as compiled:
        return btf_data(compiled.btf_fd)


def test_a_map_that_is_not_declared_has_no_types(blob: bytes) -> None:
    assert Btf(blob).map_types("m") is not None
    assert Btf(blob).map_types("n") is None


@given(st.data())
def test_no_bytes_break_it(blob: bytes, data: st.DataObject) -> None:
    """S1.10: types, or a ValueError."""
    broken = bytearray(blob[: data.draw(st.integers(0, len(blob)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        Btf(bytes(broken)).map_types("m")


def made(*types: bytes, strings: bytes) -> Btf:
    """BTF of these types, numbered from 1."""
    body = b"".join(types)
    header = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(body), len(body), len(strings))
    return Btf(header + body + strings)


def test_enums_of_newer_compilers_say_their_sign_and_may_have_64_bits() -> None:
    names = b"\0e\0A\0B\0"
    number = 0x123456789A
    wide = struct.pack("<III", 1, 19 << 24 | 2, 8)
    wide += struct.pack("<IIIIII", 3, number & 0xFFFFFFFF, number >> 32, 5, 1, 0)
    signed = struct.pack("<III", 1, 1 << 31 | 6 << 24 | 2, 4) + struct.pack("<IiIi", 3, 1, 5, -2)
    btf = made(wide, signed, strings=names)
    assert btf.type(1).enumerators == {"A": number, "B": 1}
    assert btf.type(1).dtype == np.dtype("u8")
    assert btf.type(2).enumerators == {"A": 1, "B": -2}
    assert btf.type(2).dtype == np.dtype("i4")


def test_a_type_that_holds_itself_is_refused() -> None:
    """The kernel takes no such BTF; nobody else's is read."""
    const = struct.pack("<III", 0, 10 << 24, 1)
    with pytest.raises(ValueError, match="itself"):
        made(const, strings=b"\0").type(1)


def test_types_of_an_unknown_kind_are_refused() -> None:
    for odd in (struct.pack("<IIII", 0, 1 << 24, 3, 24), struct.pack("<III", 0, 6 << 24, 3)):
        with pytest.raises(ValueError, match="3 bytes"):
            made(odd, strings=b"\0").type(1)
    with pytest.raises(ValueError, match="kind"):
        made(struct.pack("<III", 0, 31 << 24, 1), strings=b"\0")


LOCKED = """
struct v { struct bpf_spin_lock lock; __be32 saddr; u32 n:3; };
BPF_HASH(m, u32, struct v, 4);
int f(struct xdp_md *ctx)
{
    u32 key = 0;
    struct v *v = m.lookup(&key);
    if (v) {
        bpf_spin_lock(&v->lock);
        v->n++;
        bpf_spin_unlock(&v->lock);
    }
    return XDP_PASS;
}
"""
WITHOUT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.programs.program import Program
with Compiler(stores=()) as compiler, compiler.compile({LOCKED!r}, ProgType.XDP) as compiled:
    print(*compiled.maps["m"].value_type.members["saddr"].type.names)
    Program(compiled, "f").close()
"""


def test_types_need_no_privilege_that_a_probe_does_without() -> None:
    """Opening BTF by its id would need CAP_SYS_ADMIN: a map with a lock could not be cloned."""
    run = subprocess.run(
        [sys.executable, "-I", "-c", WITHOUT],
        preexec_fn=without_sys_admin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (run.returncode, run.stdout) == (0, "__be32 __u32 unsigned int\n"), run.stderr
