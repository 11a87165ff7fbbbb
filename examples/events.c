/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * One queue entry for each connection attempt: packet granularity. If the queue is full, an attempt
 * counts as a loss.
 */
#define IPV4_ONLY
#include "packet.h"
#include "tcp_flags.h"

struct attempt {
    u64 time; /* nanoseconds, CLOCK_MONOTONIC */
    __be32 source;
    __be32 destination;
    u16 source_port;
    u16 destination_port;
};

BPF_QUEUE(attempts, struct attempt, 4096);

int watch(CONTEXT *ctx) {
    struct packet packet = {};
    if (parse_packet(ctx, &packet) != PARSED || (packet.tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
        return VERDICT_PASS;

    struct attempt attempt = {};
    attempt.time = bpf_ktime_get_ns();
    attempt.source = packet.key.source[0];
    attempt.destination = packet.key.destination[0];
    attempt.source_port = bpf_ntohs(SOURCE_PORT(&packet.key));
    attempt.destination_port = bpf_ntohs(DESTINATION_PORT(&packet.key));
    if (attempts.push(&attempt, 0))
        lose(LOSS_TABLE_FULL, packets_of(ctx), bytes_of(ctx));
    return VERDICT_PASS;
}
