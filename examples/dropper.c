/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Drop and count datagrams to a UDP port. Later probes of the chain see all other packets. */
#include "packet.h"

#define PORT 9 /* discard */

struct dropped {
    u64 packets;
    u64 bytes;
};

BPF_PERCPU_ARRAY(dropped, struct dropped, 1);

int dropper(CONTEXT *ctx) {
    struct packet packet = {};
    int result = parse_packet(ctx, &packet);
    if (result != PARSED || PROTOCOL(&packet.key) != IPPROTO_UDP ||
        DESTINATION_PORT(&packet.key) != bpf_htons(PORT))
        return VERDICT_PASS;

    u32 zero = 0;
    struct dropped *count = dropped.lookup(&zero);
    if (count) {
        count->packets += packets_of(ctx);
        count->bytes += bytes_of(ctx);
    }
    return VERDICT_DROP;
}
