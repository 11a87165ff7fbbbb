"""The verifier's usual reasons in plain words: real programs that the verifier refuses."""

from __future__ import annotations

import pytest

from bpf.abi import ProgType
from bpf.compiler import CompileError, Compiler
from bpf.compiler.advice import advice

REFUSED = {
    "a lookup without a test": (
        "BPF_ARRAY(mine, u64, 8);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u32 k = ctx->rx_queue_index; u64 *m = mine.lookup(&k); (*m)++;\n"
        "    return 2;\n"
        "}\n",
        "m may be NULL (lookup of `mine`): write  if (m) (*m)++; (R0 invalid",
    ),
    "a field of a lookup without a test": (
        "struct e { u64 a; u64 b; };\n"
        "BPF_HASH(hosts, u32, struct e);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u32 k = 0;\n"
        "    struct e *e = hosts.lookup(&k);\n"
        "    e->b += 2;\n"
        "    return 2;\n"
        "}\n",
        "e may be NULL (lookup of `hosts`): write  if (e) e->b += 2;",
    ),
    "a packet without a check": (
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u8 *data = (void *)(long)ctx->data;\n"
        "    return data[12] == 8 ? 1 : 2;\n"
        "}\n",
        "no length is checked: write before  if ((void *)data + 13 > (void *)(long)ctx->data_end)",
    ),
    "a packet with a short check": (
        "BPF_ARRAY(a, u64, 1);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;\n"
        "    if (data + 14 > end) return 2;\n"
        "    return data[20] == 8 ? 1 : 2;\n"
        "}\n",
        "only 14 are checked: write before  if ((void *)data + 21 > (void *)end) return",
    ),
    "a loop without an end": (
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    volatile u32 n = 1;\n"
        "    while (n) { n = n | 1; }\n"
        "    return 2;\n"
        "}\n",
        "sees no end of this loop: give it a constant bound",
    ),
    "a socket that is kept": (
        "int f(struct __sk_buff *ctx)\n"
        "{\n"
        "    struct bpf_sock_tuple t = {};\n"
        "    struct bpf_sock *s = bpf_sk_lookup_tcp(ctx, &t, sizeof(t.ipv4), -1, 0);\n"
        "    return s ? 0 : 1;\n"
        "}\n",
        "call bpf_sk_release(sk) before each return",
    ),
    "a record that is kept": (
        "BPF_RINGBUF_OUTPUT(r, 1);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u64 *v = r.ringbuf_reserve(8);\n"
        "    return v ? 1 : 2;\n"
        "}\n",
        "call ringbuf_submit(record, 0) or ringbuf_discard(record, 0)",
    ),
    "a helper of another hook": (
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    char b[8]; bpf_probe_read_user(b, 8, 0);\n"
        "    return bpf_skb_pull_data((void *)ctx, 1);\n"
        "}\n",
        "has no bpf_skb_pull_data",
    ),
    "a signed index": (
        "BPF_ARRAY(m, u64, 1);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    int n = ctx->rx_queue_index;\n"
        "    char b[64] = {}; char *p = b;\n"
        "    p += n;\n"
        "    return *p ? 1 : 2;\n"
        "}\n",
        "the index may be negative or too large",
    ),
    "an index without a limit": (
        "struct t { u64 a[16]; };\n"
        "BPF_ARRAY(table, struct t, 1);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u32 k = 0, i = ctx->rx_queue_index;\n"
        "    struct t *t = table.lookup(&k);\n"
        "    if (!t) return 2;\n"
        "    return t->a[i] ? 1 : 2;\n"
        "}\n",
        "i may be outside of the value of `table`: write before  if (i >= 16) return",
    ),
    "an index with a wide limit": (
        "struct t { u64 a[16]; };\n"
        "BPF_ARRAY(table, struct t, 1);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u32 k = 0, i = ctx->rx_queue_index & 31;\n"
        "    struct t *t = table.lookup(&k);\n"
        "    if (!t) return 2;\n"
        "    return t->a[i] ? 1 : 2;\n"
        "}\n",
        "uses bytes 248 to 255 of a value of `table`, which has 128",
    ),
    "code after an exit": (
        'int f(struct xdp_md *ctx)\n{\n    asm volatile("exit");\n    return 2;\n}\n',
        "code is never reached",
    ),
    "a packet pointer plus a number": (
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;\n"
        "    u64 n; bpf_xdp_load_bytes(ctx, 0, &n, 8);\n"
        "    data += n;\n"
        "    if (data + 1 > end) return 2;\n"
        "    return *data ? 1 : 2;\n"
        "}\n",
        "moves by a number without a limit",
    ),
    "a number as a pointer": (
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u64 *p = (void *)(long)ctx->rx_queue_index;\n"
        "    return *p ? 1 : 2;\n"
        "}\n",
        "this is a number and no pointer",
    ),
    "a write of the context": (
        "int f(struct xdp_md *ctx)\n{\n    ctx->data = 7;\n    return 2;\n}\n",
        "cannot use the 4 bytes at offset 0 of ctx",
    ),
    "an access beyond a variable": (
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    char b[16] = {}; \n"
        "    return *(u64 *)(b + 64) ? 1 : 2;\n"
        "}\n",
        "the program ends without a verdict",
    ),
    "a packet that has moved": (
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u8 *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;\n"
        "    if (data + 14 > end) return 2;\n"
        "    bpf_xdp_adjust_head(ctx, 4);\n"
        "    return data[3] ? 1 : 2;\n"
        "}\n",
        "bpf_xdp_adjust_head() moves the packet: after it, read ctx->data",
    ),
    "a length without a limit": (
        "BPF_ARRAY(m, u64, 1);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    char b[64] = {}; u32 n = ctx->rx_queue_index;\n"
        "    bpf_xdp_load_bytes(ctx, 0, b, n);\n"
        "    return b[0] ? 1 : 2;\n"
        "}\n",
        "the length of bpf_xdp_load_bytes() may be 0, negative or too large",
    ),
    "a lock that is kept": (
        "struct v { struct bpf_spin_lock lock; u32 n; };\n"
        "BPF_ARRAY(m, struct v, 1);\n"
        "int f(struct xdp_md *ctx)\n"
        "{\n"
        "    u32 k = 0;\n"
        "    struct v *v = m.lookup(&k);\n"
        "    if (!v) return 2;\n"
        "    bpf_spin_lock(&v->lock);\n"
        "    v->n++;\n"
        "    return 2;\n"
        "}\n",
        "call bpf_spin_unlock(&value->lock) before each return",
    ),
}
REASONS = {
    "back-edge from insn 9 to 4": "give it a constant bound",
    "BPF program is too large. Processed 1000001 insn": "too many steps to verify",
    "The sequence of 8193 jumps is too complex.": "too many steps to verify",
    "combined stack size of 2 calls is 576. Too large": "keep a large one in a BPF_PERCPU_ARRAY",
    "invalid indirect read from stack R2 off -8+4 size 8": "begin with  = {};",
    "R1 type=map_value_or_null; possibly NULL pointer passed to trusted arg0": "may be NULL",
    "R2 min value is negative, either use unsigned or 'var &= const'": "limit it before",
    "misaligned packet access off 0+2+1 size 4": "read it byte by byte",
    "R3 !read_ok": "was never set",
    "jump out of range from insn 3 to 99": "make the function smaller",
    "unknown func bpf_frob#999": "has no bpf_frob",
    "R1 pointer arithmetic on ctx prohibited": "add a limited number to a pointer",
    "cannot call GPL-restricted function from non-GPL compatible program": "BPF_LICENSE(GPL)",
    "dereference of modified ctx ptr R1 off=8 disallowed": "copy a field of it",
    "R0 leaks addr as return value": "would leave the program as a number",
    "At program exit the register R0 has smin=7 should have been in [0, 4]": "VERDICT_PASS or",
    "write into map forbidden, value_size=8 off=0 size=8": "change a copy of it",
    "Operation not permitted": "CAP_BPF and CAP_NET_ADMIN",
    "missing BTF func_info": "use plain types",
}
"""Reasons of other kernels, or that take long to provoke."""


@pytest.mark.parametrize("what", REFUSED)
def test_a_refusal_is_told_in_plain_words_with_the_fix(compiler: Compiler, what: str) -> None:
    *lines, words = REFUSED[what]
    source = "".join(lines)
    kind = ProgType.SCHED_CLS if "__sk_buff" in source else ProgType.XDP
    with pytest.raises(CompileError) as caught:
        compiler.compile(source, kind, name="my.c").close()
    (told,) = (each for each in caught.value.diagnostics if each.severity == "error")
    assert told.text.startswith("the verifier refused f: ")
    assert words in told.text
    assert told.line


@pytest.mark.parametrize("reason", REASONS)
def test_a_reason_without_a_source_has_a_fix_too(reason: str) -> None:
    assert REASONS[reason] in advice(reason)


def test_an_unknown_reason_stays_as_it_is() -> None:
    assert advice("the moon is full") == ""


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("x = *m;", "write  if (m) x = *m;"),
        ("u64 x = *m;", "write before  if (!m) return VERDICT_PASS;"),
        ("return m->a;", "write before  if (!m) return VERDICT_PASS;"),
        ("m->a--;", "write  if (m) m->a--;"),
        ("*m = 7;", "write  if (m) *m = 7;"),
        ("m[0] += k == 1;", "write  if (m) m[0] += k == 1;"),
    ],
)
def test_the_fix_of_a_lookup_fits_its_statement(line: str, fix: str) -> None:
    source = f"u64 *m = mine.lookup(&k);\n{line}\n"
    said = advice("R0 invalid mem access 'map_value_or_null'", "", source, 2)
    assert said == f"m may be NULL (lookup of `mine`): {fix}"
