"""Declarations: every spelling of a map at its place, types as written; no text breaks it."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bpf.abi import ProgType
from bpf.compiler import Compiler
from probes import syntax
from probes.declarations import FunctionDeclaration, parse
from probes.syntax import Member

ROOT = Path(__file__).parent.parent.parent
PROGRAM = "int program(struct xdp_md *ctx) { return XDP_PASS; }\n"

# Each map's name says what its declaration must be found to be: kind, key and value.
SPELLINGS = """
BPF_TABLE("percpu_hash", struct key, u64, t_percpu_hash, 16);
BPF_TABLE("lru_hash", u32, struct key, t_lru, 16);
BPF_F_TABLE("lpm_trie", struct lpm, u64, t_flags, 16, BPF_F_NO_PREALLOC);
BPF_TABLE_PUBLIC("hash", u32, u64, t_public, 16);
BPF_TABLE_SHARED("hash", u32, u64, t_shared, 16);
BPF_HASH(h1);
BPF_HASH(h2, u32)
BPF_HASH(h3, struct key, struct key)
BPF_HASH(h4, u32, unsigned long long, 5);
BPF_ARRAY(a1);
BPF_ARRAY(a3, struct key, 4);
BPF_PERCPU_HASH(ph, u32, u64, 8);
BPF_PERCPU_ARRAY(pa, u64, 8);
BPF_HISTOGRAM(hist);
BPF_HISTOGRAM(hist_by, struct key);
BPF_LPM_TRIE(trie, struct lpm);
BPF_QUEUE(queue, struct key, 4);
BPF_STACK(stack, u64, 4);
BPF_QUEUESTACK("queue", queuestack, u32, 4, 0);
BPF_RINGBUF_OUTPUT(ring, 1);
BPF_PERF_OUTPUT(perf);
BPF_PERF_ARRAY(perf_array, 4);
BPF_CGROUP_ARRAY(cgroups, 4);
BPF_PROG_ARRAY(progs, 4);
BPF_STACK_TRACE(traces, 4);
BPF_DEVMAP(devices, 4);
BPF_CPUMAP(cpus, 4);
BPF_XSKMAP(sockets, 4);
BPF_SOCKMAP(sockmap, 4);
BPF_SOCKHASH(sockhash, u64);
BPF_ARRAY_OF_MAPS(arrays, "a1", 4);
"""
TYPES = "struct key { u32 a; };\nstruct lpm { u32 prefixlen; u32 data; };\n"
FOUND = {
    "t_percpu_hash": ("percpu_hash", "struct key", "u64"),
    "t_lru": ("lru_hash", "u32", "struct key"),
    "t_flags": ("lpm_trie", "struct lpm", "u64"),
    "t_public": ("hash", "u32", "u64"),
    "t_shared": ("hash", "u32", "u64"),
    "h1": ("hash", "u64", "u64"),
    "h2": ("hash", "u32", "u64"),
    "h3": ("hash", "struct key", "struct key"),
    "h4": ("hash", "u32", "unsigned long long"),
    "a1": ("array", "int", "u64"),
    "a3": ("array", "int", "struct key"),
    "ph": ("percpu_hash", "u32", "u64"),
    "pa": ("percpu_array", "int", "u64"),
    "hist": ("histogram", "int", "u64"),
    "hist_by": ("histogram", "struct key", "u64"),
    "trie": ("lpm_trie", "struct lpm", "u64"),
    "queue": ("queue", "", "struct key"),
    "stack": ("stack", "", "u64"),
    "queuestack": ("queue", "", "u32"),
    "ring": ("ringbuf", "", ""),
    "perf": ("perf_output", "", ""),
    "perf_array": ("perf_array", "int", "u32"),
    "cgroups": ("cgroup_array", "int", "u32"),
    "progs": ("prog", "u32", "u32"),
    "traces": ("stacktrace", "int", "struct bpf_stacktrace"),
    "devices": ("devmap", "u32", "int"),
    "cpus": ("cpumap", "u32", "u32"),
    "sockets": ("xskmap", "u32", "int"),
    "sockmap": ("sockmap", "u32", "int"),
    "sockhash": ("sockhash", "u64", "int"),
    "arrays": ("array_of_maps", "int", "int"),
}


def test_every_spelling_of_bcc_is_found_at_its_place() -> None:
    """S1.14."""
    found = parse(TYPES + SPELLINGS + PROGRAM).maps
    assert {name: (m.kind, m.key, m.value) for name, m in found.items()} == FOUND
    lines = (TYPES + SPELLINGS).split("\n")
    for name, declared in found.items():
        assert lines[declared.line - 1][declared.column - 1 :].startswith(name)
        assert lines[declared.line - 1].startswith(declared.macro)


def test_what_is_found_is_what_the_compiler_made(compiler: Compiler) -> None:
    """S1.14: the places are of the very maps that the compiler's table metadata names."""
    source = f'#include "probe.h"\n{TYPES}' + "".join(
        f"{line}\n" for line in SPELLINGS.split("\n") if "TABLE_SHARED" not in line
    )
    source = source.replace(")\n", ");\n") + PROGRAM
    with compiler.compile(source, ProgType.XDP) as compiled:
        assert compiled.maps.keys() - {"losses"} == parse(source).maps.keys()


@pytest.mark.parametrize(
    ("text", "name", "line", "column"),
    [
        ("  \tBPF_HASH(m, u32);", "m", 1, 13),
        ("BPF_TABLE(\n  \"hash\",\n  struct key,\n  u64,\n  m,\n  10\n);", "m", 5, 3),
        ("BPF_HASH( /* the counts */ m /* by */, u32 // address\n, u64)", "m", 1, 28),
        ("#if 1\n# ifdef A\nBPF_HASH(x);\n#else\n  BPF_HASH(m);\n# endif\n#endif", "m", 5, 12),
        ("BPF_HASH(x, u32)\nBPF_HASH(m, u32)\nstruct s { u32 a; };", "m", 2, 10),
        ("BPF_HASH (m, u32);", "m", 1, 11),
        ("#define NAME m\nBPF_HASH(NAME, u32);", "m", 2, 10),
        ("BPF_HASH(never_closed, u32\nBPF_HASH(m, u32);", "m", 2, 10),
        ("int f( {\nBPF_HASH(m, struct { u32 a; u32 b; });", "m", 2, 10),
        ("BPF_HASH(m, u32)\r\nint f(void) { return 0; }\r\n", "m", 1, 10),
        ("const char *s = \"é\"; BPF_HASH(m);", "m", 1, 32),  # in bytes, as clang counts
    ],
)  # fmt: skip
def test_a_map_is_found_however_it_is_written(text: str, name: str, line: int, column: int) -> None:
    """S1.14."""
    declared = parse(text + "\n").maps[name]
    assert (declared.line, declared.column) == (line, column)


def test_names_that_contain_one_another_are_told_apart() -> None:
    source = "BPF_HASH(flow)\nBPF_HASH(flows)\nBPF_HASH(flow_flows)\nBPF_HASH(s)\n" + PROGRAM
    lines = {name: declared.line for name, declared in parse(source).maps.items()}
    assert lines == {"flow": 1, "flows": 2, "flow_flows": 3, "s": 4}


@pytest.mark.parametrize(
    "text",
    [
        "// BPF_HASH(m);",
        "/* BPF_HASH(m);\n   BPF_HASH(m); */",
        'char *s = "BPF_HASH(m)";',
        "#define M(name) BPF_HASH(name)",
        "#define M \\\n BPF_HASH(m)",
        "XBPF_HASH(m);",
        "BPF_HASHED(m);",
        "int BPF_HASH;",
        "BPF_HASH();",
        "#include <BPF_HASH(m)>",
    ],
)
def test_what_only_looks_like_a_map_is_none(text: str) -> None:
    assert parse(f"{text}\n{PROGRAM}").maps == {}


def test_both_branches_of_an_if_are_told() -> None:
    source = "#ifdef V6\nBPF_HASH(m, struct v6);\n#else\nBPF_HASH(m, u32);\n#endif\n"
    first = parse(source).maps["m"]
    assert [(d.line, d.key) for d in (first, *first.others)] == [(2, "struct v6"), (4, "u32")]


def test_functions_and_which_are_programs() -> None:
    found = parse(
        "BPF_HASH(m, struct key)\n"
        "static __always_inline int helper(u32 a) { return a; }\n"
        'SEC("xdp") int first(struct xdp_md *ctx)\n{ return 1; }\n'
        "__noinline\nint *second(struct xdp_md *ctx) { return 0; }\n"
        "int declared_only(void);\n"
    ).functions
    assert found == (
        FunctionDeclaration("helper", 2, 28, True),
        FunctionDeclaration("first", 3, 16, False),
        FunctionDeclaration("second", 6, 6, False),
    )


def test_types_as_they_are_declared() -> None:
    found = parse(
        """
        #define SIZE (1 << 4)
        #define KEY struct key
        enum state { NEW, OPEN = SIZE, LAST, NEGATIVE = -1, NEXT, X = 'x' };
        struct key {
            const __be32 saddr, daddr __aligned(8);
            unsigned char name[SIZE][2 * 3];
            u32 low:5, :0, high:27;
            enum state state;
            struct { u8 x; } in;
            union { u16 y; };
            void *at;
        #ifdef MORE
            u64 more;
        #endif
        } __packed;
        typedef struct { u32 a; } pair_t;
        typedef u8 mac_t[6];
        """
    )
    members = {m.name: m for m in found.records["struct key"] if m.name}
    assert members["saddr"] == Member("saddr", "__be32")
    assert members["daddr"] == Member("daddr", "__be32")
    assert members["name"] == Member("name", "unsigned char", (16, 6))
    assert members["low"] == Member("low", "u32", (), 5)
    assert members["high"].bits == 27
    assert Member("", "u32", (), 0) in found.records["struct key"]
    assert members["state"].type == "enum state"
    assert found.records[members["in"].type] == (Member("x", "u8"),)
    assert members["at"].type == "void *"
    assert members["more"] == Member("more", "u64")
    anonymous = next(m for m in found.records["struct key"] if m.type.startswith("union @"))
    assert found.records[anonymous.type] == (Member("y", "u16"),)
    assert found.enums["enum state"] == {
        "NEW": 0, "OPEN": 16, "LAST": 17, "NEGATIVE": -1, "NEXT": 0, "X": 120,
    }  # fmt: skip
    assert found.records[found.typedefs["pair_t"].type] == (Member("a", "u32"),)
    assert found.typedefs["mac_t"] == Member("mac_t", "u8", (6,))
    assert found.defines["KEY"] == "struct key"


def test_types_of_headers_count_and_their_maps_have_no_place() -> None:
    found = parse('#include "packet.h"\n#include "made.h"\n', {"made.h": "struct made { u8 a; };"})
    assert {m.name for m in found.records["struct flow_key"]} == {
        "source", "destination", "transport",
    }  # fmt: skip
    assert found.records["struct made"] == (Member("a", "u8"),)
    assert found.maps == {}


def test_a_header_is_never_a_file_from_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret.h"
    secret.write_text("struct secret { u8 a; };")
    assert parse(f'#include "{secret}"\n#include "../../../..{secret}"\n').records == {}


def test_a_macro_that_stands_for_itself_is_no_number() -> None:
    ladder = "#define A0 1\n" + "".join(f"#define A{i} A{i - 1}+A{i - 1}\n" for i in range(1, 60))
    found = parse(
        f"#define A B\n#define B A\n{ladder}struct s {{ u8 a[A]; u8 b[A3]; u8 c[1/0]; }};"
    )
    assert [m.dimensions for m in found.records["struct s"]] == [(0,), (8,), (0,)]


FRAGMENTS = st.sampled_from([
    "BPF_HASH(", 'BPF_TABLE("hash", ', "struct key {", "union", "enum {A=", "typedef ", ")", "}",
    ";", "#if 0\n", "#else\n", "#endif\n", "#define X X\n", "/*", "*/", "//", '"', "'", "\\\n",
    ",", "u32 a:3", "[", "]", "__aligned(", "SEC", "(", "\0", "\ud800", "é", "1<<", "int f(",
    '#include "probe.h"', "static ",
])  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(), st.lists(FRAGMENTS, max_size=40).map("".join)))
@example("struct a { struct a; struct a { struct a; } b; };")
@example("enum { A = " + "(" * 2000 + "1" + ")" * 2000 + " };")
def test_no_text_breaks_it(text: str) -> None:
    found = parse(text)
    assert all(declared.name for declared in found.maps.values())


@cache
def megabytes() -> dict[str, str]:
    size = 1 << 20
    chance = random.Random(1)
    flow = (ROOT / "probes/flow/flow.c").read_text()
    return {
        "C": flow * (size // len(flow)),
        "maps": "".join(f"BPF_HASH(map{i}, u32, u64);\n" for i in range(size // 32)),
        "parentheses": "(" * size,
        "braces": "struct {" * (size // 8),
        "quotes": '"' * size,
        "words": "a " * (size // 2),
        "binary": chance.randbytes(size).decode("latin1"),
        "punctuation": "".join(chance.choices("(){}[];,*&ab<>#\"'\n ", k=size)),
        "zeros": "\0" * size,
    }


@pytest.mark.parametrize("name", megabytes())
def test_a_megabyte_takes_little_time(name: str) -> None:
    text = megabytes()[name]
    parse("")  # imports the grammar
    started = time.process_time()
    found = parse(text)
    seconds = time.process_time() - started
    # 0.3 s for C on an idle machine; what is no C is given up.
    assert seconds < (2 if name == "C" else 5)
    if name == "C":
        assert len(found.functions) > 1000
    if name == "maps":
        assert len(found.maps) == text.count("\n")


def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syntax, "_TIME_LIMIT_S", 0.0)
    assert parse("BPF_HASH(m);\n" * 10_000).maps == {}


def test_importing_it_does_not_load_the_grammar() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import probes.declarations, probes.tables;"
        "sys.exit('tree_sitter' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-I", "-c", script], check=False).returncode == 0
