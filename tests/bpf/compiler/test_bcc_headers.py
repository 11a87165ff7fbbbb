"""bcc's headers, cut to the needs of a source: the same programs, and nothing missing."""

from __future__ import annotations

import glob
import re
from pathlib import Path

import pytest

from bpf.abi import ProgType
from bpf.compiler import Compiler
from bpf.compiler.bcc_headers import BccHeaders
from tests.bpf.compiler import confined

EXAMPLES = Path(__file__).parents[3] / "examples"
COMPILE = f"""
import hashlib
from collections import defaultdict
from pathlib import Path
from bpf.abi import ProgType
from bpf.attach.attachment import Hook
from bpf.attach.interface import Interface
from bpf.compiler import Compiler
from bpf.compiler.instructions import relocate
from probes.hooks.interface_hook import macros_of
flags = [f"-D{{n}}={{v}}" for n, v in macros_of(Interface("lo", 1, True), Hook.XDP).items()]
with Compiler(stores=()) as compiler:
    for name in ("destinations", "dropper", "events", "networks", "sampler", "sizes", "tcp-flags"):
        source = Path({str(EXAMPLES)!r}, f"{{name}}.c").read_text(encoding="utf-8")
        with compiler.compile(source, ProgType.XDP, cflags=flags, preludes=["records.h"]) as made:
            for program in made.programs.values():
                code = relocate(program.instructions, defaultdict(int))
                print(name, program.name, hashlib.sha256(code).hexdigest(), made.diagnostics)
"""


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> BccHeaders:
    (library,) = {str(Path(path).resolve()) for path in glob.glob("/usr/lib/*/libbcc.so.0")}
    return BccHeaders(library, str(tmp_path_factory.mktemp("headers")))


def cut(headers: BccHeaders, source: str) -> str:
    return Path(headers.flags(source)[-1]).read_text(encoding="utf-8")


def test_a_cut_header_has_what_a_source_names(headers: BccHeaders) -> None:
    text = cut(headers, "n.push(&x, 0); bpf_ktime_get_ns(); bpf_dext_pkt(p, 0, 0, 8);")
    for name in ("bpf_map_push_elem", "bpf_ktime_get_ns", "bpf_dext_pkt", "load_dword"):
        assert re.search(rf"\b{name}\b\)? ?\(", text), name
    assert "(*bpf_fib_lookup)" not in text
    assert "struct bpf_fib_lookup {" not in text
    assert "struct bpf_fib_lookup {" in cut(headers, "bpf_fib_lookup(ctx, &fib, 64, 0)")


@pytest.mark.slow
@pytest.mark.skipif(not confined.has_landlock(), reason="no Landlock here")
def test_whole_headers_give_the_same_programs() -> None:
    """Where a helper cannot write a header, it takes the whole ones."""
    with_cut = confined.run(COMPILE, lambda: None)
    assert with_cut.count("\n") >= 7
    assert confined.run(COMPILE, confined.forbid_mounts) == with_cut


def test_a_name_that_no_word_shows_is_found(compiler: Compiler) -> None:
    source = """
    #define CLOCK(name) bpf_ktime_##name
    int pasted(struct xdp_md *ctx) { return CLOCK(get_boot_ns)() & 1; }
    """
    compiler.compile(source, ProgType.XDP).close()


def test_another_libbcc_has_whole_headers(tmp_path: Path) -> None:
    other = tmp_path / "libbcc.so"
    other.write_bytes(b"another")
    assert BccHeaders(str(other), str(tmp_path)).flags("int x;") == []
