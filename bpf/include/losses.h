/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The counting of losses, common to every probe.
 */
#pragma once

#include <uapi/linux/bpf.h>

/* Why something is not in a probe's result. Same order as LossReason in probes/snapshot.py. */
enum loss_reason {
    LOSS_NOT_IP,     /* no IP packet: nothing that a flow could be made of */
    LOSS_MALFORMED,  /* an IP header that is cut short or contradicts itself */
    LOSS_FILTERED,   /* not among the flows that are to be captured */
    LOSS_TABLE_FULL, /* no room was left for a record */
    LOSS_OVERRUN,    /* a result was overwritten before it was read */
    LOSS_BUDGET,     /* user space may not use more CPU */
    LOSS_REASONS,
};

struct loss {
    u64 packets;
    u64 bytes;
};

BPF_PERCPU_ARRAY(losses, struct loss, LOSS_REASONS);

static __always_inline void lose(u32 reason, u64 packets, u64 bytes) {
    struct loss *loss = losses.lookup(&reason);
    if (loss) {
        loss->packets += packets;
        loss->bytes += bytes;
    }
}
