/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets that user space sends for path tracing (probes/path/active): echo requests, and a flow to
 * a destination to which no application sends. No other probe of this host counts them.
 */
#ifndef OWN_H
#define OWN_H

#include "mark.h"
#include "path.h"

enum sender {
    BY_APPLICATION,
    BY_OWN_FLOW, /* causes probes as an application's packet does */
    BY_REQUEST,
};

/* The sender of a packet to `target` whose transport header begins at offset `at`. */
static __always_inline enum sender sender_of(CONTEXT *ctx, struct target *target, u32 protocol,
                                             u32 at) {
    bool echo = protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6;
    if (!echo && target->own >> 32 != protocol)
        return BY_APPLICATION;
    u32 header[2];
    if (bpf_skb_load_bytes(ctx, at, header, sizeof(header)))
        return BY_APPLICATION;
    if (target->own == ((u64)protocol << 32 | (echo ? header[1] & 0xffff : header[0])))
        return BY_OWN_FLOW;
    struct mark mark;
    if (!echo || bpf_skb_load_bytes(ctx, at + sizeof(header), &mark, sizeof(mark)))
        return BY_APPLICATION;
    return is_request(&mark) ? BY_REQUEST : BY_APPLICATION;
}

#endif
