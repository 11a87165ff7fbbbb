/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Drop packets from and to the networks of a list, which operators write. */
#define IPV4_ONLY
#include "packet.h"

struct network {
    u32 length;
    __be32 address;
};

BPF_LPM_TRIE(blocked, struct network, u32, 4096);
BPF_PERCPU_ARRAY(dropped, u64, 1);

int block(CONTEXT *ctx) {
    struct packet packet = {};
    if (parse_packet(ctx, &packet) != PARSED)
        return VERDICT_PASS;
#ifdef HOOK_TC_EGRESS
    struct network host = {32, packet.key.destination[0]};
#else
    struct network host = {32, packet.key.source[0]};
#endif
    if (!blocked.lookup(&host))
        return VERDICT_PASS;
    u32 zero = 0;
    u64 *count = dropped.lookup(&zero);
    if (count)
        *count += packets_of(ctx);
    return VERDICT_DROP;
}
