/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Traffic accounting (S2.17): packets and bytes by destination, or by another chosen key.
 *
 * Traffic without room in the table is a counted loss. After that the table is not asked again
 * before the next tick: searching for room takes longer than all the rest.
 *
 * ENTRIES, the most keys of a window, and the macros of key.h come from the configuration.
 */
#include "application.h"
#include "key.h"

struct traffic {
    u64 packets;
    u64 bytes;
};

BPF_PERCPU_HASH(accounts, struct key, struct traffic, ENTRIES);
BPF_PERCPU_ARRAY(full_at, u64, 1); /* when the table was last full, on this CPU */

APPLICATION(accounting) {
    u32 zero = 0;
    u64 *full = full_at.lookup(&zero);
    if (!full)
        return;
    struct key key = {};
    write_key(&key, &packet->packet.key);
    struct traffic none = {};
    struct traffic *traffic =
        *full == packet->now_ns ? accounts.lookup(&key) : accounts.lookup_or_try_init(&key, &none);
    if (traffic) {
        traffic->packets += packet->packets;
        traffic->bytes += packet->bytes;
    } else {
        *full = packet->now_ns;
        lose(LOSS_TABLE_FULL, packet->packets, packet->bytes);
    }
}
