"""Maps of a source: every spelling at its place, and no text breaks it."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.compiler.compiled import map_places

ROOT = Path(__file__).parents[3]
PROGRAM = "int program(struct xdp_md *ctx) { return XDP_PASS; }\n"

# One of each of bcc's macros.
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


def test_every_spelling_of_bcc_is_found_at_its_place(compiler: Compiler) -> None:
    """S1.14: the maps that the compiler makes, each at the line that declares it."""
    source = TYPES + "".join(
        f"{line}\n" for line in SPELLINGS.split("\n") if "TABLE_SHARED" not in line
    )
    source = source.replace(")\n", ");\n") + PROGRAM
    lines = source.split("\n")
    with compiler.compile(source, ProgType.XDP) as compiled:
        assert len(compiled.maps) == 30
        for name, found in compiled.maps.items():
            assert re.search(rf"\b{name}\b", lines[found.line - 1])
            assert lines[found.line - 1].startswith("BPF_")
            assert found.histogram == name.startswith("hist")


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("  \tBPF_HASH(m, u32);", "m", 1),
        ('BPF_TABLE(\n  "hash",\n  struct key,\n  u64,\n  m,\n  10\n);', "m", 5),
        ("BPF_HASH( /* the counts */ m /* by */, u32 // address\n, u64)", "m", 1),
        ("#if 1\n# ifdef A\nBPF_HASH(x);\n#else\n  BPF_HASH(m);\n# endif\n#endif", "m", 5),
        ("BPF_HASH(x, u32)\nBPF_HASH(m, u32)\nstruct s { u32 a; };", "m", 2),
        ("BPF_HASH (m, u32);", "m", 1),
        ("#define NAME m\nBPF_HASH(NAME, u32);", "m", 2),
        ("BPF_HASH(never_closed, u32\nBPF_HASH(m, u32);", "m", 2),
        ("int f( {\nBPF_HASH(m, struct { u32 a; u32 b; });", "m", 2),
        ("u32 m;\nstruct m { u32 m; };\nBPF_HASH(m, u32)\r\nint f(void) { return m; }\r\n", "m", 3),
        ('const char *s = "\u00e9"; BPF_HASH(m);', "m", 1),
        ("#ifdef V6\nBPF_HASH(m, struct v6);\n#else\nBPF_HASH(m, u32);\n#endif\n", "m", 2),
    ],
)
def test_a_map_is_found_however_it_is_written(text: str, name: str, line: int) -> None:
    """S1.14."""
    assert map_places(text + "\n")[name].line == line


def test_names_that_contain_one_another_are_told_apart() -> None:
    source = "BPF_HASH(flow)\nBPF_HASH(flows)\nBPF_HASH(flow_flows)\nBPF_HASH(s)\n" + PROGRAM
    lines = {name: place.line for name, place in map_places(source).items()}
    assert lines == {"flow": 1, "flows": 2, "flow_flows": 3, "s": 4}


@pytest.mark.parametrize(
    "text",
    [
        "// BPF_HASH(m);",
        "/* BPF_HASH(m);\n   BPF_HASH(m); */",
        'char *s = "BPF_HASH(m)";',
        "XBPF_HASH(m);",
        "int BPF_HASH;",
        "BPF_HASH();",
        "BPF_HASH(struct m);",
    ],
)
def test_what_only_looks_like_a_map_is_none(text: str) -> None:
    assert map_places(f"{text}\n{PROGRAM}") == {}


@pytest.mark.parametrize(
    ("text", "histogram"),
    [
        ("BPF_HISTOGRAM(m);", True),
        ("BPF_HISTOGRAM(m, struct key, 64);", True),
        ('BPF_TABLE("histogram", int, u64, m, 64);', True),
        ("BPF_ARRAY(m, u64, 64);", False),
        ("BPF_HISTOGRAM(other); BPF_ARRAY(m, u64, 64);", False),
    ],
)
def test_a_histogram_is_known_by_its_macro(text: str, histogram: bool) -> None:
    """S1.8: the kernel takes it for an array or a hash."""
    assert map_places(text)["m"].histogram == histogram


def test_a_histogram_of_a_header_is_one_and_has_no_line(compiler: Compiler) -> None:
    source = f'#include "mine.h"\nBPF_HASH(here);\n{PROGRAM}'
    headers = {"mine.h": "\n\nBPF_HISTOGRAM(m);\n"}
    with compiler.compile(source, ProgType.XDP, headers=headers) as compiled:
        assert compiled.maps["m"].histogram
        assert compiled.maps["m"].line == 0
        assert compiled.maps["here"].line == 2


FRAGMENTS = st.sampled_from([
    "BPF_HASH(", 'BPF_TABLE("hash", ', "BPF_HISTOGRAM(", "m", ")", "}", ";", "#if 0\n", "#endif\n",
    "#define X X\n", "#define m x\n", "/*", "*/", "//", '"', "'", "\\\n", ",", "SEC", "(", "\0",
    "\ud800", "\u00e9",
])  # fmt: skip


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(), st.lists(FRAGMENTS, max_size=40).map("".join)))
def test_no_text_breaks_it(text: str) -> None:
    for name, place in map_places(text).items():
        assert name.isidentifier()
        assert 1 <= place.line <= text.count("\n") + 1


MEGABYTE = 1 << 20
MEGABYTES: dict[str, Callable[[], str]] = {
    "C": lambda: (ROOT / "probes/flow/flow.c").read_text() * 120,
    "maps": lambda: "".join(f"BPF_HASH(map{i}, u32, u64);\n" for i in range(MEGABYTE // 32)),
    "opened": lambda: "BPF_HASH(" * (MEGABYTE // 9),
    "arguments": lambda: "BPF_HASH(" + "a, " * (MEGABYTE // 3),
    "macros": lambda: "BPF_" * (MEGABYTE // 4),
    "spaces": lambda: "BPF_HASH" + " " * MEGABYTE,
    "defines": lambda: "#define a b\n" * (MEGABYTE // 12),
    "quotes": lambda: '"' * MEGABYTE,
    "binary": lambda: random.Random(1).randbytes(MEGABYTE).decode("latin1"),
    "punctuation": lambda: "".join(random.Random(1).choices("(){}[];,*&ab<>#\"'\n ", k=MEGABYTE)),
}


@pytest.mark.parametrize("name", MEGABYTES)
def test_a_megabyte_takes_little_time(name: str) -> None:
    text = MEGABYTES[name]()
    started = time.process_time()
    found = map_places(text)
    assert time.process_time() - started < 2  # 0.2 s on an idle machine
    if name == "maps":
        assert len(found) == text.count("\n") + 2  # and u32 and u64
