"""Preludes: the names that a framework puts before a data plane."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bpf.attach.attachment import Hook
from bpf.compiler import CompileError, Compiler
from probes.config.model import ProbeConfig, dump, load, parse
from probes.program.probe import ProgramProbe
from probes.tables.conversion import objects
from tests.probes.program.tools import Loose, direction, metric, snapshots, total

PLUGIN = """\
BPF_TABLE("hash", u16, u64, LENGTHS, 64)__attributes__((SWAP, EXPORT));

static __always_inline
int handler(struct CTXTYPE *ctx, struct pkt_metadata *md) {
    struct eth_hdr *eth = (void *)(long)ctx->data;
    struct iphdr *ip = (void *)(eth + 1);
    if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
        return PASS;
    u16 length = md->length;
    LENGTHS.increment(length);
    dp_log(INFO, "%d bytes, bit %d", md->length, first_bit_set_pos(md->length));
    dp_log(ERROR, "not of this level");
    if (length > 90)
        return pkt_to_controller(ctx, md) ? DROP : PASS;
    return get_time_epoch(ctx) < BEGIN ? DROP : PASS;
}
"""
"""As dechainy's plugins are. There a level passes if its number is at most LOG_LEVEL."""
WRAPPER = """\
BPF_TABLE("extern", int, int, PROGRAM_TYPE_next_MODE, MAX_PROGRAMS_PER_HOOK);
static int handler(struct CTXTYPE *ctx, struct pkt_metadata *md);
int internal_handler(struct CTXTYPE *ctx) {
    struct pkt_metadata md = {.length = 1, .program_id = PROGRAM_ID, .xdp = XDP};
    int rc = handler(ctx, &md);
    if (rc == PASS)
        PROGRAM_TYPE_next_MODE.call(ctx, md.program_id);
    return rc;
}
"""
OWN_PROGRAM = """\
struct tcphdr {
    __be16 source, dest;
} __attribute__((packed));
#if POLYCUBE_PROGRAM_TYPE == 0
BPF_TABLE_SHARED("hash", u16, u64, LENGTHS, 64);
#else
BPF_TABLE("extern", u16, u64, LENGTHS, 64);
#endif
int handle_rx(struct CTXTYPE *ctx) {
    u16 length = sizeof(struct tcphdr);
    LENGTHS.increment(length);
    return RX_OK;
}
"""
"""A program without the framework, with a struct of the kernel's name."""
SERVICE = """\
#include <bcc/helpers.h>
#include <uapi/linux/if_ether.h>
struct eth_hdr {
    __be64 dst : 48;
    __be64 src : 48;
    __be16 proto;
} __attribute__((packed));
BPF_TABLE("hash", __be64, u32, stations, 64);

static __always_inline int handle_rx(struct CTXTYPE *ctx, struct pkt_metadata *md) {
    struct eth_hdr *eth = (void *)(long)ctx->data;
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return RX_DROP;
    __be64 source = eth->src, target = eth->dst;
    u32 port = md->in_port, *out;
    stations.update(&source, &port);
    pcn_log(ctx, LOG_DEBUG, "not of this level: %M", source);
    if ((out = stations.lookup(&target)))
        return *out == port ? RX_OK : pcn_pkt_redirect(ctx, md, *out);
    pcn_log(ctx, LOG_ERR, "%M is not known", target);
    pcn_pkt_controller(ctx, md, 7);
    return RX_DROP;
}
"""
"""As polycube's bridges are."""
HOOKS = pytest.mark.parametrize("hook", [Hook.XDP, Hook.TC_INGRESS])
VERDICTS = {Hook.XDP: {"pass": 2, "drop": 1}, Hook.TC_INGRESS: {"pass": -1, "drop": 2}}


@pytest.fixture
def loose(compiler: Compiler) -> Iterator[Loose]:
    with Loose(compiler) as hooks:
        yield hooks


def frame(size: int, to: int = 2, source: int = 1) -> bytes:
    head = to.to_bytes(6, "big") + source.to_bytes(6, "big") + b"\x08\x00"
    return head + b"\x45" + bytes(size - 15)


def added(loose: Loose, hook: Hook, source: str, prelude: str, *names: str, **more: Any) -> Any:
    kind = "xdp" if hook is Hook.XDP else "tc"
    metrics = [metric(name, snapshot=True) for name in names]
    side = direction(source, *metrics, hook=kind, prelude=prelude, **more)
    return loose.add(parse({"name": "probe", "interval": 0, "ingress": side}, "test"))


def tables(probe: ProgramProbe) -> dict[str, list[dict[str, Any]]]:
    return {
        each.metric: list(objects(each.schema, each.rows))
        for each in snapshots(probe.export())
        if each.schema
    }


def sent(loose: Loose, hook: Hook, *frames: bytes) -> Iterator[str]:
    names = {number & 0xFFFFFFFF: name for name, number in VERDICTS[hook].items()}
    for each in frames:
        verdict = loose.send(1, each, hook=hook) & 0xFFFFFFFF
        yield names.get(verdict, str(verdict))


@HOOKS
def test_a_plugin_of_dechainy_runs_as_it_is_written(loose: Loose, hook: Hook) -> None:
    define = {"PROBE_ID": 9, "BEGIN": time.time_ns() - 60 * 10**9}
    names = "LENGTHS", "log_buffer", "control_plane"
    probe = added(loose, hook, PLUGIN, "dechainy.h", *names, define=define)
    assert list(sent(loose, hook, frame(64), frame(64), frame(100))) == ["pass"] * 3
    found = tables(probe)
    assert {row["key"]: row["value"] for row in found["LENGTHS"]} == {64: 2, 100: 1}
    logs = [row["value"] for row in found["log_buffer"]]
    assert [(log["level"], log["args"], log["message"]) for log in logs] == [
        (20, [size, bit, 0, 0], "%d bytes, bit %d") for size, bit in ((64, 6), (64, 6), (100, 2))
    ]
    (packet,) = (row["value"] for row in found["control_plane"])
    is_xdp = int(hook is Hook.XDP)
    assert (packet["length"], packet["probe_id"], packet["ingress"], packet["xdp"]) == (
        100, 9, 1, is_xdp,
    )  # fmt: skip
    assert packet["ifindex"] == 1
    assert not any(tables(probe).values())


def test_a_plugin_whose_queue_is_full_tells_the_loss(loose: Loose) -> None:
    define = {"PROBE_ID": 9, "BEGIN": 0}
    probe = added(loose, Hook.XDP, PLUGIN, "dechainy.h", "control_plane", define=define)
    loose.send(1030, frame(100), hook=Hook.XDP)
    (table,) = snapshots(probe.export())
    assert len(table.rows) == 1024
    # The log has no reader and is full, too.
    assert [(loss.packets, loss.bytes) for loss in table.losses.values()] == [(12, 600)]


@HOOKS
def test_the_wrapper_of_dechainy_and_a_program_without_it(loose: Loose, hook: Hook) -> None:
    added(loose, hook, WRAPPER, "dechainy.h")
    assert list(sent(loose, hook, frame(64))) == ["pass"]
    other = added(loose, hook, OWN_PROGRAM, "dechainy.h", "LENGTHS")
    list(sent(loose, hook, frame(64)))
    assert tables(other)["LENGTHS"] == [{"key": 4, "value": 1}]


@HOOKS
def test_a_service_of_polycube_runs_as_it_is_written(loose: Loose, hook: Hook) -> None:
    names = "stations", "log_buffer", "controller"
    probe = added(loose, hook, SERVICE, "polycube.h", *names)
    frames = frame(64, to=2, source=1), frame(64, to=1, source=2), b"\0" * 14 + bytes(46)
    assert list(sent(loose, hook, *frames)) == ["drop", "pass", "pass"]
    found = tables(probe)
    assert {row["key"] for row in found["stations"]} == {1 << 16, 2 << 16, 0}
    assert {row["value"] for row in found["stations"]} == {1}
    (log,) = (row["value"] for row in found["log_buffer"])
    assert (log["level"], log["args"][0], log["message"]) == (4, 2 << 40, "%M is not known")
    (packet,) = (row["value"] for row in found["controller"])
    assert (packet["reason"], packet["in_port"], packet["packet_len"]) == (7, 1, 64)


def test_a_prelude_of_ones_own(loose: Loose, tmp_path: Path) -> None:
    """It stands beside the C file, decides the hook, and comes along by the API."""
    (tmp_path / "framework.h").write_text(
        "#define ENTRY(ctx) static int body(CONTEXT *ctx)\n"
        '#include "probe.h"\n'
        "BPF_ARRAY(packets, u64, 1);\n"
        "#ifdef DEFINES_finish\n#define STEP 5\n#endif\n"
        "static int body(CONTEXT *ctx);\n"
        "int whole(CONTEXT *ctx) { body(ctx); return VERDICT_PASS; }\n"
    )
    (tmp_path / "probe.c").write_text(
        "static void finish(void) {\n}\n"
        "ENTRY(ctx) {\n    packets.increment(0, STEP);\n    return 0;\n}\n"
    )
    (tmp_path / "probe.toml").write_text(
        'name = "probe"\ninterval = 0\n[ingress]\ninterface = "lo"\nsource = "probe.c"\n'
        'prelude = "framework.h"\n[[ingress.metrics]]\nname = "packets"\nmap = "packets"\n'
    )
    config = load(tmp_path / "probe.toml")
    probe = loose.add(parse(dump(config), "request"))
    loose.send(2, frame(64), hook=Hook.TC_INGRESS)
    assert total(probe.export()) == 10
    (tmp_path / "probe.c").write_text("ENTRY(ctx) {\n    return oops;\n}\n")
    assert refused(loose, load(tmp_path / "probe.toml")) == [(f"{tmp_path}/probe.c", 2)]
    assert refused(loose, parse({**dump(config), "ingress": WITHOUT}, "request")) == [
        ("probe.ingress.c", 1)
    ]


WITHOUT = {"interface": "lo", "source": "int f;\n", "prelude": "framework2.h"}
"""A prelude that nobody brings."""


def refused(loose: Loose, config: ProbeConfig) -> list[tuple[str, int]]:
    with pytest.raises(CompileError) as caught:
        loose.add(config)
    error = caught.value.renamed(config.files())
    return [(each.file, each.line) for each in error.diagnostics if each.severity == "error"]
