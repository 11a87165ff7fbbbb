/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counts packets by IP protocol: a start for a probe of your own. */
#include "packet.h"

BPF_PERCPU_HASH(protocols, u8, u64, 256);

int count(CONTEXT *ctx) {
    struct packet packet = {};
    if (parse_packet(ctx, &packet) != PARSED)
        return VERDICT_PASS;

    u8 protocol = PROTOCOL(&packet.key);
    u64 none = 0, *packets = protocols.lookup_or_try_init(&protocol, &none);
    if (packets)
        *packets += packets_of(ctx);
    return VERDICT_PASS;
}
