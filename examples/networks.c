/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Bytes by source network, which is the longest matching prefix of the trie. If no prefix matches
 * an address, the program adds its /24.
 */
#define IPV4_ONLY
#include "packet.h"

#define NEW_LENGTH 24
#define NEW_MASK bpf_htonl(0xffffff00)

struct network {
    u32 length;
    __be32 address;
};

BPF_LPM_TRIE(networks, struct network, u64, 16384);

int by_network(CONTEXT *ctx) {
    u64 packets = packets_of(ctx), bytes = bytes_of(ctx);
    struct packet packet = {};
    if (!parse_or_lose(ctx, &packet, packets, bytes))
        return VERDICT_PASS;

    __be32 address = packet.key.source[0];
    struct network host = {32, address};
    u64 *counted = networks.lookup(&host);
    if (!counted) {
        struct network network = {NEW_LENGTH, address & NEW_MASK};
        u64 none = 0;
        networks.insert(&network, &none);
        counted = networks.lookup(&host);
    }
    if (counted)
        lock_xadd(counted, bytes);
    else
        lose(LOSS_TABLE_FULL, packets, bytes);
    return VERDICT_PASS;
}
