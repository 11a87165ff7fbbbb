/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets and bytes by IPv4 destination. If the table is full, new destinations count as losses. */
#define IPV4_ONLY
#include "packet.h"

struct traffic {
    u64 packets;
    u64 bytes;
};

BPF_PERCPU_HASH(destinations, __be32, struct traffic, 65536);

int account(CONTEXT *ctx) {
    u64 packets = packets_of(ctx), bytes = bytes_of(ctx);
    struct packet packet = {};
    if (!parse_or_lose(ctx, &packet, packets, bytes))
        return VERDICT_PASS;

    __be32 address = packet.key.destination[0];
    struct traffic none = {};
    struct traffic *traffic = destinations.lookup_or_try_init(&address, &none);
    if (traffic) {
        traffic->packets += packets;
        traffic->bytes += bytes;
    } else {
        lose(LOSS_TABLE_FULL, packets, bytes);
    }
    return VERDICT_PASS;
}
