"""Messages of clang and the verifier become places in the user's own source."""

from __future__ import annotations

import pytest

from bpf.abi import ProgType
from bpf.compiler import CompileError, Compiler, Diagnostic
from bpf.compiler.diagnostics import end_of_log, parse_clang, parse_verifier
from tests.bpf.compiler.marked_source import marked

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
        == "the verifier refused careless: value may be NULL (lookup of `sizes`): write before  "
        "if (!value) return VERDICT_PASS; (R6 invalid mem access 'map_value_or_null')"
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
        "available headers: packet.h, probe.h and others of probedeck, and files beside the "
        "source, below the configuration's directory, or in a directory of include",
    ]


def test_an_application_that_returns_a_verdict_is_told_that_it_is_passive() -> None:
    """D9: the hint spoke of a map's method."""
    said = "void function '{}' should not return a value [-Wreturn-type]"
    texts = [
        parse_clang(f"a.c:7:5: error: {said.format(name)}\n")[0].text
        for name in ("limiter_takes", "helper")
    ]
    assert "an application only looks" in texts[0]
    assert "examples/dropper.c" in texts[0]
    assert "lookup_or_try_init" in texts[1]
    assert "application" not in texts[1]


def test_an_older_kernels_log_without_places_still_gives_the_reason() -> None:
    log = (
        "0: R1=ctx(off=0,imm=0) R10=fp0\n; return *value;\n"
        "5: (79) r0 = *(u64 *)(r0 +0)\nR0 invalid mem access 'map_value_or_null'\n"
        "processed 6 insns (limit 1000000) max_states_per_insn 0\n"
    )
    assert str(parse_verifier("f", log)) == (
        "error: the verifier refused f: a pointer may be NULL: test it before its first use "
        "(R0 invalid mem access 'map_value_or_null')"
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


@pytest.mark.parametrize("name", ["t.c", "e1.ingress.c", "the_long_name_of_a_short_probe.egress.c"])
def test_the_line_of_a_short_program_depends_on_no_name(compiler: Compiler, name: str) -> None:
    """Without maps the kernel's log has a line only at its beginning."""
    for before in ("", "\n\n"):
        text, line, _ = marked(
            f"{before}int prog(struct xdp_md *ctx) {{\n"
            "@bpf_skb_load_bytes((void *)ctx, 0, 0, 0);\nreturn XDP_PASS; }\n"
        )
        with pytest.raises(CompileError, match="has no bpf_skb_load_bytes") as caught:
            compiler.compile(text, ProgType.XDP, name=name)
        assert [(d.file, d.line) for d in caught.value.diagnostics] == [(name, line)]


def test_a_program_without_instructions_is_told_by_clangs_warning(compiler: Compiler) -> None:
    text, line, column = marked(
        "int prog(struct xdp_md *ctx) {\nint z = 0;\n@*(u32 *)0 = 5;\nreturn XDP_PASS; }\n"
    )
    with pytest.raises(CompileError, match="clang left no instruction of it") as caught:
        compiler.compile(text, ProgType.XDP, name="my.c")
    error = caught.value.diagnostics[-1]
    assert (error.line, error.column, error.severity) == (line, column, "error")


def test_a_log_that_was_cut_gives_its_reason_and_stays_short() -> None:
    """The kernel's buffer was full of a loop: the first row is the rest of one, and the reason
    stands behind an instruction."""
    round_ = (
        ";  @ e1.ingress.c:7\n15: (85) call bpf_ktime_get_ns#5      ; R0=scalar()\n"
        ";  @ e1.ingress.c:6\n21: (2d) if r1 > r2 goto pc-7         ; R0=scalar() R1=pkt_end()\n"
    )
    log = end_of_log(
        f"f r1 > r2 goto pc-7         ; R0=scalar() R1=pkt_end()\n{round_ * 9000}"
        "21: (2d) if r1 > r2 goto pc-7 BPF program is too large. Processed 1000001 insn\n"
        "processed 1000001 insns (limit 1000000) max_states_per_insn 4 total_states 12504\n"
    )
    assert len(log) < 300_000
    assert log.startswith("; ")
    found = parse_verifier("prog", log)
    assert (found.file, found.line) == ("e1.ingress.c", 6)
    assert "too many steps to verify" in found.text
    assert "(BPF program is too large. Processed 1000001 insn; " in found.text
    assert end_of_log("short") == "short"


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
