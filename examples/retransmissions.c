/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * TCP segments that this host sends again, by port of the other end.
 *
 * Tracepoint tcp_retransmit_skb (include/trace/events/tcp.h) has the socket as its first argument.
 */
#include "event.h"

BPF_HASH(ports, u16, u64, 65536);

int retransmitted(struct bpf_raw_tracepoint_args *ctx) {
    u16 port = 0;
    READ_KERNEL(port, ctx->args[0], KERNEL_OFFSET(sock_common, skc_dport));
    port = bpf_ntohs(port);
    u64 none = 0, *count = ports.lookup_or_try_init(&port, &none);
    if (count)
        lock_xadd(count, 1);
    return 0;
}
