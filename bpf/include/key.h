/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A key chosen at compile time: parts of the 5-tuple, addresses by prefix.
 *
 * KEY_SOURCE, KEY_DESTINATION, KEY_PROTOCOL, KEY_SOURCE_PORT and KEY_DESTINATION_PORT are 1 for
 * parts of the key, else 0. PREFIX_V4 and PREFIX_V6 are the numbers of leading address bits. All
 * other fields are zero.
 */
#pragma once

#include "address.h"

#if !(KEY_SOURCE || KEY_DESTINATION || KEY_PROTOCOL || KEY_SOURCE_PORT || KEY_DESTINATION_PORT)
#error "there is nothing in the key: one of KEY_SOURCE, KEY_DESTINATION, ... must be 1"
#endif

struct key {
    u64 source[2];
    u64 destination[2];
    u16 source_port; /* host order */
    u16 destination_port;
    u32 protocol;
};

/* The first `bits` bits of a word in network order; none below 0, all from 64 on. */
#define LEADING(bits)                                                                              \
    ((bits) <= 0 ? 0 : (bits) >= 64 ? ~0ULL : __builtin_bswap64(~0ULL << ((64 - (bits)) & 63)))

static __always_inline void write_network(u64 *to, u64 *address, u64 version) {
    u64 network[2];
    network[0] = address[0] & (version == 4 ? LEADING(PREFIX_V4) : LEADING(PREFIX_V6));
    network[1] = address[1] & LEADING(PREFIX_V6 - 64);
    write_address(to, network, version);
}

/* Fill `key`, which is zero. */
static __always_inline void write_key(struct key *key, struct flow_key *flow) {
    if (KEY_SOURCE)
        write_network(key->source, flow->source, VERSION(flow));
    if (KEY_DESTINATION)
        write_network(key->destination, flow->destination, VERSION(flow));
    if (KEY_SOURCE_PORT)
        key->source_port = bpf_ntohs(SOURCE_PORT(flow));
    if (KEY_DESTINATION_PORT)
        key->destination_port = bpf_ntohs(DESTINATION_PORT(flow));
    if (KEY_PROTOCOL)
        key->protocol = PROTOCOL(flow);
}
