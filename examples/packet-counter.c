/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets and bytes of a hook. Each CPU has a counter; the metric's `agg` adds them up. */
#include "probe.h"

struct count {
    u64 packets;
    u64 bytes;
};

BPF_PERCPU_ARRAY(counts, struct count, 1);

int count_packets(CONTEXT *ctx) {
    u32 zero = 0;
    struct count *count = counts.lookup(&zero);
    if (count) {
        count->packets += packets_of(ctx);
        count->bytes += bytes_of(ctx);
    }
    return VERDICT_PASS;
}
