/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Common to the preludes of frameworks: dechainy.h and polycube.h.
 *
 * A prelude stands before the source. DEFINES_name is defined for each function, struct, union and
 * enum that the source defines; EXTERN_name for each of its extern maps. EPOCH_NS is the UTC in
 * nanoseconds when bpf_ktime_get_ns() was 0, if the source has the word "epoch".
 */
#pragma once

#include "probe.h"

#ifdef HOOK_XDP
#define CTXTYPE xdp_md
#else
#define CTXTYPE __sk_buff
#endif
#ifdef HOOK_TC_EGRESS
#define FRAMEWORK_EGRESS 1
#else
#define FRAMEWORK_EGRESS 0
#endif
#ifndef EPOCH_NS
#define EPOCH_NS 0 /* the source does not ask for it */
#endif
#define EPOCH_BASE CONSTANT(EPOCH_NS)

/* Message of a program's log; its arguments are as they were given. */
struct log_entry {
    u64 time;
    u64 level;
    u64 args[4];
    char message[96];
};

/* Export it as a metric: oldest messages come first. */
BPF_QUEUE(log_buffer, struct log_entry, 1024);

static __always_inline void write_log(struct log_entry *entry) {
    entry->time = bpf_ktime_get_ns();
    if (log_buffer.push(entry, 0))
        lose(LOSS_TABLE_FULL, 1, 0);
}

static __always_inline u32 incoming_interface(struct CTXTYPE *ctx) {
#ifdef HOOK_XDP
    return ctx->ingress_ifindex;
#else
    return ctx->ifindex;
#endif
}

static __always_inline u32 frame_length(struct CTXTYPE *ctx) {
#ifdef HOOK_XDP
    return ctx->data_end - ctx->data;
#else
    return ctx->len;
#endif
}
