"""Programs for libbpf, with the parts that bcc's dialect lacks, and configurations for them."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

from bpf.objects.client import clang
from probes.config.model import ProbeConfig, parse

HEAD = """\
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
"""
LICENSE = 'char LICENSE[] SEC("license") = "GPL";\n'
COUNTER = f"""\
{HEAD}
struct {{
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
}} packets SEC(".maps");

__u64 seen;
const volatile __u32 step = 1;
static __u64 odd = 1;

static __noinline int add(struct xdp_md *ctx, __u32 by)
{{
    __u32 zero = 0;
    __u64 *n = bpf_map_lookup_elem(&packets, &zero);
    if (n)
        __sync_fetch_and_add(n, by);
    return ctx->ingress_ifindex;
}}

static long each(__u32 index, void *sum)
{{
    *(__u64 *)sum += index;
    return 0;
}}

SEC("xdp")
int count(struct xdp_md *ctx)
{{
    __u64 sum = 0;
    bpf_loop(3, each, &sum, 0);
    if (sum != 3)
        return XDP_ABORTED;
    odd ^= 1;
    add(ctx, step);
    __sync_fetch_and_add(&seen, step);
    return XDP_PASS;
}}

{LICENSE}"""
"""Counts packets in a map and in a variable, by a subprogram and after a callback."""


def compiled(source: str, folder: Path, *flags: str) -> bytes:
    """Compile a source as its author does."""
    file, made = folder / "source.c", folder / "made.o"
    file.write_text(source)
    command = [clang(), "--target=bpf", "-g", "-O2", *flags, "-c", str(file), "-o", str(made)]
    subprocess.run([*command, "-idirafter", "/usr/include/x86_64-linux-gnu"], check=True)
    return made.read_bytes()


def config(source: str | bytes, *metrics: dict[str, Any], **more: Any) -> ProbeConfig:
    """A probe of incoming packets; keys of a direction in `more` go there, others to the probe."""
    names = ("hook", "function", "define", "headers", "dialect")
    side = {key: more.pop(key) for key in names if key in more}
    if isinstance(source, bytes):
        side["object"] = base64.b64encode(source).decode()
    else:
        side["source"] = source
    side = {"interface": "lo", "metrics": list(metrics), **side}
    return parse({"name": "probe", "interval": 0, "ingress": side, **more}, "test")
