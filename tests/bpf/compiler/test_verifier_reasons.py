"""Programs that the verifier refuses: the line, the reason and a way out of each."""

from __future__ import annotations

import pytest

from bpf.abi import ProgType
from bpf.compiler import CompileError, Compiler
from tests.bpf.compiler.marked_source import marked

FINE = "int f(struct xdp_md *ctx)\n{\n    return XDP_PASS;\n}\n"


REFUSED: dict[str, tuple[str, str | tuple[str, ...]]] = {
    "in a macro's expansion": (
        "#define TWICE(x) ((x) + (x))\nint f(struct xdp_md *ctx)\n{\n"
        "    return TWICE(@unheard_of);\n}\n",
        "use of undeclared identifier",
    ),
    "a missing semicolon": (
        "int f(struct xdp_md *ctx)\n{\n    int a = 1@\n    a++;\n    return a;\n}\n",
        "expected ';' at end of declaration",
    ),
    "an unheard-of method": (
        "BPF_HASH(m);\nint f(struct xdp_md *ctx)\n{\n    u64 k = 0;\n"
        "    m.@frob(&k);\n    return 2;\n}\n",
        "no member named 'frob' in 'struct m_table_t'",
    ),
    "a map in a macro": (
        "BPF_HASH(m);\n#define GET(k) m.lookup(&k)\nint f(struct xdp_md *ctx)\n{\n    u64 k = 0;\n"
        "    @GET(k);\n    return 2;\n}\n",
        "cannot use map function inside a macro; make the macro a static inline function",
    ),
    "a map as libbpf's": (
        "BPF_HASH(m);\nint f(struct xdp_md *ctx)\n{\n    u64 k = 0;\n"
        "    @u64 *v = bpf_map_lookup_elem(&m, &k);\n    return v ? 1 : 2;\n}\n",
        "expected=map_ptr; use a map by its methods: map.lookup(&key)",
    ),
    "an unheard-of helper": (
        "int f(struct xdp_md *ctx)\n{\n    return @bpf_frob(ctx);\n}\n",
        (
            "implicit declaration of function 'bpf_frob'",
            "call to undeclared function 'bpf_frob'",
        ),
    ),
    "a helper of another kind of program": (
        "int f(struct xdp_md *ctx)\n{\n    @return bpf_skb_pull_data((void *)ctx, 1);\n}\n",
        "program of this type cannot use helper bpf_skb_pull_data",
    ),
    "another hook's program": (
        "int @f(struct __sk_buff *skb)\n{\n    return skb->protocol;\n}\n",
        "f takes a struct __sk_buff, and a program of this hook gets a struct xdp_md",
    ),
    "a global variable": (
        "u64 counter;\nint f(struct xdp_md *ctx)\n{\n    @counter++;\n    return 2;\n}\n",
        "global and static variables, constant tables and long strings are not there",
    ),
    "a variable that stays": (
        "int f(struct xdp_md *ctx)\n{\n    static u64 n;\n    @return n++;\n}\n",
        "global and static variables",
    ),
    "a constant table": (
        f"static const u32 t[16] = {{ {', '.join(map(str, range(16)))} }};\n"
        "int f(struct xdp_md *ctx)\n{\n    @return t[ctx->rx_queue_index & 15];\n}\n",
        "constant tables",
    ),
    "a function that is not inlined": (
        "__attribute__((noinline)) static int g(int x)\n{\n    return x * 3;\n}\n"
        "int @f(struct xdp_md *ctx)\n{\n    return g(ctx->rx_queue_index);\n}\n",
        "every function that is called must be __always_inline",
    ),
    "a loop that is too long": (
        "int f(struct xdp_md *ctx)\n{\n    u32 z = 0;\n"
        "    @for (u32 i = 0; i < ctx->data_end; i++) bpf_ktime_get_ns();\n    return z;\n}\n",
        "too many steps to verify",
    ),
    "a stack that is too large": (
        "struct big { u64 a[80]; };\nBPF_HASH(m, u32, struct big);\nint f(struct xdp_md *ctx)\n{\n"
        "    struct big @b = {};\n    u32 k = 0;\n    m.update(&k, &b);\n    return 2;\n}\n",
        "Looks like the BPF stack limit ",
    ),
    "a division of signed numbers": (
        "int f(struct xdp_md *ctx)\n{\n    int a = ctx->rx_queue_index;\n    return a @/ -3;\n}\n",
        (
            "eBPF has no instruction for sdiv; divide unsigned numbers",
            "unsupported signed division, please convert to unsigned",
        ),
    ),
    "floating point": (
        "int f(struct xdp_md *ctx)\n{\n    float x = @ctx->rx_queue_index;\n"
        "    return x * 1.5f;\n}\n",
        "neither floating point nor 128-bit arithmetic",
    ),
    "a jump to a computed label": (
        "int f(struct xdp_md *ctx)\n{\n    void *to[] = {&&a, &&b};\n"
        "    goto *@to[ctx->rx_queue_index & 1];\na:\n    return 1;\nb:\n    return 2;\n}\n",
        "eBPF has no instruction for brind",
    ),
    "a size that is not constant": (
        "int f(struct xdp_md *ctx)\n{\n    char a[70];\n    @memset(a, 0, ctx->rx_queue_index);\n"
        "    return a[3];\n}\n",
        "its size must be a constant",
    ),
    "inline assembly": (
        'int f(struct xdp_md *ctx)\n{\n    @asm volatile("bogus");\n    return 2;\n}\n',
        "inline assembly: ",
    ),
    "too many maps": (
        "".join(f"BPF_ARRAY(m{i}, u64, 1);\n" for i in range(65))
        + "int @f(struct xdp_md *ctx)\n{\n    int z = 0;\n"
        + "".join(f"    m{i}.increment(z);\n" for i in range(65))
        + "    return 2;\n}\n",
        "maps per program has reached the limit of 64; put several values into one map",
    ),
    "a map of more than the kernel takes": (
        "BPF_HASH(ok);\nBPF_HASH(@m, u32, u64, 4000000000);\n" + FINE,
        "map m cannot be made: Argument list too long",
    ),
    "a map of more than there is": (
        "BPF_HASH(ok);\n// m\nBPF_ARRAY(@m, u64, 4000000000);\n" + FINE,
        "map m cannot be made: Cannot allocate memory; out of memory",
    ),
    "a map of nothing": ("\nBPF_HASH(@m, u32, u64, 0);\n" + FINE, "map m cannot be made: Invalid"),
    "a trie without its flag": (
        'struct k { u32 len; u32 a; };\nBPF_TABLE("lpm_trie", struct k, u64, @m, 16);\n' + FINE,
        "an LPM trie needs BPF_F_NO_PREALLOC",
    ),
    "two maps of one name": (
        "BPF_HASH(m);\n@BPF_HASH(m, u32);\n" + FINE,
        "redefinition of 'm_table_t'",
    ),
    "an unheard-of kind": ('@BPF_TABLE("hsah", u32, u64, m, 16);\n' + FINE, "such as hash, percpu"),
    "an unheard-of type": ("BPF_HASH(m, @foo_t);\n" + FINE, "unknown type name 'foo_t'"),
    "a map's end forgotten": ("@BPF_HASH(m, u32;\n" + FINE, "unterminated function-like macro"),
    "another's map": (
        '@BPF_TABLE("extern", u32, u64, m, 1);\n' + FINE,
        "declare a map as its owner does and share it",
    ),
    "a path without a value": (
        "int f(struct xdp_md *ctx)\n{\n    if (ctx->rx_queue_index)\n        return 2;\n@}\n",
        "non-void function does not return a value in all control paths",
    ),
    "what the source itself refuses": ("\n#@error not today\n" + FINE, "not today"),
    "a NUL": ("int a;\n@\0\n" + FINE, "a NUL: this is no text"),
}


SEVERAL = """\
BPF_HASH(m, u32, u64, 8);
int good(struct xdp_md *ctx) { u32 k = 1; m.increment(k); return XDP_PASS; }
int other(struct __sk_buff *skb) { return skb->protocol; }
int unsafe(struct xdp_md *ctx) { u32 k = 1; u64 *v = m.lookup(&k); return *v; }
int kprobe__x(struct pt_regs *ctx) { return 0; }
TRACEPOINT_PROBE(net, netif_rx) { return 0; }
"""


def test_only_the_function_that_is_asked_for_must_fit(compiler: Compiler) -> None:
    with compiler.compile(SEVERAL, ProgType.XDP, function="good") as compiled:
        assert list(compiled.programs) == ["good"]
        assert set(compiled.functions) > {"good", "other", "unsafe", "kprobe__x"}
    with compiler.compile(SEVERAL, ProgType.SCHED_CLS, function="other") as compiled:
        assert compiled.programs["other"].type is ProgType.SCHED_CLS
    with pytest.raises(CompileError, match="R0 invalid mem access 'map_value_or_null'"):
        compiler.compile(SEVERAL, ProgType.XDP, function="unsafe")
    with pytest.raises(CompileError, match="choose the program of this hook by its name: function"):
        compiler.compile(SEVERAL, ProgType.XDP)
    with pytest.raises(CompileError, match="undeclared identifier 'foo'"):
        compiler.compile(
            SEVERAL + "int bad(void *c) { return foo; }", ProgType.XDP, function="good"
        )


@pytest.mark.parametrize("what", REFUSED)
def test_whatever_is_refused_is_told_with_its_line_and_a_way_out(
    compiler: Compiler, what: str
) -> None:
    """Clang, bcc's rewriter, LLVM, its assembler, the kernel's maps and the verifier.

    Where several reasons stand, each is of another version of LLVM.
    """
    text, reasons = REFUSED[what]
    text, line, column = marked(text)
    with pytest.raises(CompileError) as caught:
        compiler.compile(text, ProgType.XDP, name="my.c").close()
    first = next(d for d in caught.value.diagnostics if d.severity == "error")
    assert first.file == "my.c"
    if what == "a stack that is too large" and first.line != line:
        # LLVM 19 names the function only.
        line, column = text[: text.index("int f(")].count("\n") + 1, 5
    assert first.line == line
    assert first.column in (column, 0)
    assert any(r in first.text for r in ((reasons,) if isinstance(reasons, str) else reasons))
    assert "/virtual/" not in str(caught.value)


@pytest.mark.parametrize("hook", [ProgType.XDP, ProgType.SCHED_CLS])
def test_the_place_is_known_where_the_kernel_says_invalid(
    compiler: Compiler, hook: ProgType
) -> None:
    """libbcc then loads once more, without lines."""
    text, line, _ = marked(
        """\
BPF_HASH(m, u64, u64);

int f(void *ctx)
{
    u32 short_key = 0;
    m.increment(short_key);
    @m.lookup((void *)&short_key);
    return 0;
}
"""
    )
    with pytest.raises(CompileError) as caught:
        compiler.compile(text, hook, name="my.c")
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.file, diagnostic.line) == ("my.c", line)
    assert "invalid read from stack" in diagnostic.text
