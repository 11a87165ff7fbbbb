"""Messages of clang and the verifier become places in the user's own source."""

from __future__ import annotations

import pytest

from bpf.abi import ProgType
from bpf.compiler import CompileError, Compiler, Diagnostic
from bpf.compiler.diagnostics import parse_clang, parse_verifier

FINE = "int f(struct xdp_md *ctx)\n{\n    return XDP_PASS;\n}\n"
HEADERS = {"sizes.h": "#define ENTRIES 8\nstruct size { u32 bytes; };\n"}

PLACES = {
    "after two headers": """\
#include "probe.h"
#include "sizes.h"

BPF_HASH(sizes, u32, struct size, ENTRIES);

int f(CONTEXT *ctx)
{
    return @unheard_of;
}
""",
    "in the second function": """\
#include "probe.h"
BPF_HASH(sizes, u32, u64, 8);

static int first(void)
{
    u32 key = 0;
    u64 *value = sizes.lookup(&key);
    return value ? *value : 0;
}

int f(CONTEXT *ctx)
{
    u32 key = 1;
    sizes.increment(key);
    if (first())
        return 1;
    return @unheard_of;
}
""",
    "inside a statement of several lines": """\
#include "probe.h"

int f(CONTEXT *ctx)
{
    int sum =
        1 +
        @unheard_of +
        2;
    return sum;
}
""",
    "after a branch that is not taken": """\
#if 0
first;
second;
#endif
static int g = @unheard_of;
int f(struct xdp_md *ctx) { return XDP_PASS; }
""",
    "after a macro of several lines": """\
#include "probe.h"
#define TWICE(x) \\
    do {         \\
        x;       \\
        x;       \\
    } while (0)

int f(CONTEXT *ctx)
{
    TWICE({
        ctx->data;
        ctx->data;
    });
    return @unheard_of;
}
""",
    "after a comment of several lines, a form feed and CRLF": """\
/* One;
 * two;
 */\f
// three;
int f(struct xdp_md *ctx)\r
{\r
    return @unheard_of;\r
}
""",
    "in a generated header": """\
#include "broken.h"
int f(struct xdp_md *ctx) { return XDP_PASS; }
""",
}


def marked(text: str) -> tuple[str, int, int]:
    """`text` without its mark `@`, and where that was."""
    before, after = text.split("@")
    return before + after, before.count("\n") + 1, len(before) - before.rfind("\n")


@pytest.mark.parametrize("place", PLACES)
def test_clangs_errors_have_the_users_file_line_and_column(compiler: Compiler, place: str) -> None:
    text, headers, file = PLACES[place], dict(HEADERS), "my.c"
    if "@" in text:
        text, line, column = marked(text)
    else:
        file = "broken.h"
        headers[file], line, column = marked("\nstatic int g(void) {\n    return @unheard_of;\n}\n")
    with pytest.raises(CompileError) as caught:
        compiler.compile(text, ProgType.XDP, name="my.c", headers=headers, cflags=["-DHOOK_XDP"])
    assert caught.value.diagnostics == (
        Diagnostic(file, line, column, "error", "use of undeclared identifier 'unheard_of'"),
    )
    assert str(caught.value) == (
        f"my.c does not compile: {file}:{line}:{column}: error: "
        "use of undeclared identifier 'unheard_of'"
    )


def test_the_verifiers_refusal_has_its_line_its_reason_and_the_whole_log(
    compiler: Compiler,
) -> None:
    text, line, _ = marked(
        """\
#include "probe.h"
BPF_HASH(sizes, u32, u64, 8);

int fine(CONTEXT *ctx)
{
    return VERDICT_PASS;
}

int careless(CONTEXT *ctx)
{
    u32 key = 0;
    u64 *value = sizes.lookup(&key);
    u64 sum =
        bpf_ktime_get_ns() +
        @*value;
    return sum;
}
"""
    )
    with pytest.raises(CompileError) as caught:
        compiler.compile(text, ProgType.XDP, name="my.c", cflags=["-DHOOK_XDP"])
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.file, diagnostic.line, diagnostic.severity) == ("my.c", line, "error")
    assert (
        diagnostic.text
        == "the verifier refused careless: R6 invalid mem access 'map_value_or_null'"
    )
    assert caught.value.verifier_log.startswith("0: R1=ctx()")
    assert "processed " in caught.value.verifier_log.splitlines()[-1]


def test_a_warning_stays_with_what_compiled(compiler: Compiler) -> None:
    text, line, column = marked("int f(struct xdp_md *ctx)\n{\n    int @idle;\n    return 2;\n}\n")
    with compiler.compile(
        text, ProgType.XDP, name="my.c", cflags=["-Wunused-variable"]
    ) as compiled:
        (warning,) = compiled.diagnostics
    assert (warning.file, warning.line, warning.column) == ("my.c", line, column)
    assert warning.severity == "warning"
    assert "unused variable 'idle'" in warning.text


def test_clang_is_understood_once_each_with_its_notes() -> None:
    said = (
        "my.c:3:9: error: expected ';' after expression\n    x\n        ^\n"
        "probe.h:1:1: note: expanded from here\n"
        "my.c:3:9: error: expected ';' after expression\n"
        "my.c:9:1: fatal error: 'x.h' file not found\n"
    )
    assert [str(d) for d in parse_clang(said)] == [
        "my.c:3:9: error: expected ';' after expression",
        "probe.h:1:1: note: expanded from here",
        "my.c:9:1: error: 'x.h' file not found; "
        "available headers: packet.h, probe.h and others of probedeck, files beside the source",
    ]


def test_an_older_kernels_log_without_places_still_gives_the_reason() -> None:
    log = (
        "0: R1=ctx(off=0,imm=0) R10=fp0\n; return *value;\n"
        "5: (79) r0 = *(u64 *)(r0 +0)\nR0 invalid mem access 'map_value_or_null'\n"
        "processed 6 insns (limit 1000000) max_states_per_insn 0\n"
    )
    assert str(parse_verifier("f", log)) == (
        "error: the verifier refused f: R0 invalid mem access 'map_value_or_null'"
    )


def test_an_endless_loop_is_named(compiler: Compiler) -> None:
    source = """\
int f(struct xdp_md *ctx)
{
    volatile int x = 0;
    for (;;)
        x = 1;
    return x;
}
"""
    with pytest.raises(CompileError, match="infinite loop detected"):
        compiler.compile(source, ProgType.XDP)


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


ONE_LINE = {
    "the whole program": (
        "int p(struct xdp_md *ctx) { @char *q = (void *)(long)ctx->data; return q[3]; }"
    ),
    "behind another program": (
        "int a(struct xdp_md *ctx) { return 2; } "
        "int p(struct xdp_md *ctx) { @char *q = (void *)(long)ctx->data; return q[3]; }"
    ),
    "behind the brace": (
        "BPF_HASH(m);\nint p(struct xdp_md *ctx)\n"
        "{ @char *q = (void *)(long)ctx->data; return q[3]; }"
    ),
    "before the body's other lines": (
        "struct s { u32 a; };\nint p(struct xdp_md *ctx) { @char *q = (void *)(long)ctx->data;\n\n"
        "if (q[3]) return 1; return 2; }"
    ),
}


@pytest.mark.parametrize("what", ONE_LINE)
def test_the_verifiers_line_is_right_in_functions_of_one_line(
    compiler: Compiler, what: str
) -> None:
    text, line, _ = marked(ONE_LINE[what])
    with pytest.raises(CompileError, match="invalid access to packet") as caught:
        compiler.compile(text, ProgType.XDP, name="my.c")
    (diagnostic,) = caught.value.diagnostics
    at = line + 2 if "other lines" in what else line
    assert (diagnostic.file, diagnostic.line) == ("my.c", at)


def test_llvms_column_is_right_in_a_function_of_one_line(compiler: Compiler) -> None:
    text, line, column = marked(
        "int p(struct xdp_md *ctx) { /* ü */ float x = @ctx->rx_queue_index; return x * 1.5f; }"
    )
    with pytest.raises(CompileError) as caught:
        compiler.compile(text, ProgType.XDP, name="my.c")
    (found,) = [d for d in caught.value.diagnostics if d.severity == "error"]
    assert (found.file, found.line, found.column) == ("my.c", line, column + len("ü".encode()) - 1)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("TRACEPOINT_PROBE(net, netif_rx) { return 0; }", "tracepoint"),
        ("RAW_TRACEPOINT_PROBE(netif_rx) { return 0; }", "raw_tracepoint"),
        ("KFUNC_PROBE(vfs_read, void *file) { return 0; }", "kfunc"),
    ],
)
def test_a_tracing_program_is_no_program_of_a_hook(
    compiler: Compiler, source: str, kind: str
) -> None:
    """Its verdict, 0, would drop every packet."""
    text = rf"is a tracing program \({kind}\), and this hook runs programs of packets"
    for hook in (ProgType.XDP, ProgType.SCHED_CLS):
        with pytest.raises(CompileError, match=text):
            compiler.compile(source, hook)


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
