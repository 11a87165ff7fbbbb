/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The health of TCP conversations (tcp_health.h): outgoing packets of those that policies select.
 * The program is on the hook only while a policy is active. */
#include "tunnel.h"
#include "tcp_health.h"

int tcp_health_egress(CONTEXT *ctx) {
    struct packet packet = {};
    struct wire_size size = size_on_wire(ctx);
    if (parse_packet(ctx, &packet) != PARSED)
        return VERDICT_PASS;
    enter_tunnels(ctx, &packet);
    if (!follow(ctx, &packet, size.packets, size.bytes, coarse_ns(), OUTGOING))
        lose(LOSS_TABLE_FULL, size.packets, size.bytes);
    return VERDICT_PASS;
}
