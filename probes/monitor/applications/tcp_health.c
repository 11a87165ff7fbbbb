/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The health of TCP conversations (tcp_health.h): incoming packets, which policies select. */
#include "application.h"
#include "tcp_health.h"

#if RECORDS > 1
#error "tcp_health needs packets: records of telemetry have no sequence numbers"
#endif

APPLICATION(tcp_health) {
    if (!follow(ctx, &packet->packet, packet->packets, packet->bytes, packet->now_ns, INCOMING))
        lose(LOSS_TABLE_FULL, packet->packets, packet->bytes);
}
