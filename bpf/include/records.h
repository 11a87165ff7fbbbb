/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Records that do not fit into a ring are counted as lost. It stands before each source with a
 * metric on records: bcc turns methods of maps into calls of these helpers.
 */
#pragma once

#include "losses.h"

static __always_inline int counted_output(void *ring, void *record, u64 size, u64 flags) {
    int refused = bpf_ringbuf_output(ring, record, size, flags);
    if (refused)
        lose(LOSS_TABLE_FULL, 1, 0);
    return refused;
}

static __always_inline void *counted_reserve(void *ring, u64 size, u64 flags) {
    void *record = bpf_ringbuf_reserve(ring, size, flags);
    if (!record)
        lose(LOSS_TABLE_FULL, 1, 0);
    return record;
}

static __always_inline int counted_event(void *ctx, void *rings, u64 cpu, void *record, u64 size) {
    int refused = bpf_perf_event_output(ctx, rings, cpu, record, size);
    if (refused)
        lose(LOSS_TABLE_FULL, 1, 0);
    return refused;
}

#define bpf_perf_event_output counted_event
#define bpf_ringbuf_output counted_output
#define bpf_ringbuf_reserve counted_reserve
