/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * DNS flows (S2.19): a client's queries to a server, and the responses; all ports of a client are
 * one flow.
 *
 * Ports decide, because the bytes are out of reach: a packet from PORT is a response, also if it
 * goes to PORT. Later fragments, which have the ports of their datagram, add bytes but no packets:
 * a datagram is one query or response.
 *
 * All CPUs share the flows, because neither times nor the largest response can be added up. A flow
 * without room is a counted loss; after that the table is not asked again before the next tick.
 *
 * PORT, and ENTRIES, the most flows of a window, come from the configuration.
 */
#include "application.h"
#include "address.h"
#include "atomics.h"

struct dns_flow {
    u64 client[2];
    u64 server[2];
    u64 protocol; /* packets without data, such as TCP's handshake, count too */
};

struct messages {
    u64 packets; /* without later fragments */
    u64 bytes;
    u64 first; /* CLOCK_MONOTONIC, to a tick's resolution; 0: none yet */
    u64 last;
};

struct exchange {
    struct messages queries;
    struct messages responses;
    u64 largest; /* bytes of a response's packet */
};

BPF_HASH(flows, struct dns_flow, struct exchange, ENTRIES);
BPF_PERCPU_ARRAY(full_at, u64, 1); /* when the table was last full, on this CPU */

static __always_inline void add(struct messages *messages, struct selected *packet) {
    if (!is_later_fragment(&packet->packet))
        lock_xadd(&messages->packets, packet->packets);
    lock_xadd(&messages->bytes, packet->bytes);
    if (!messages->first)
        messages->first = packet->now_ns;
    messages->last = packet->now_ns;
}

/* Several CPUs may race: retry until no other CPU was faster, or stored a larger value. */
static __always_inline void keep_largest(u64 *largest, u64 value) {
#pragma unroll
    for (u32 attempt = 0; attempt < 4; attempt++) {
        u64 before = *largest;
        if (before >= value || replace_word(largest, before, value))
            return;
    }
}

APPLICATION(dns) {
    struct flow_key *key = &packet->packet.key;
    u64 protocol = PROTOCOL(key), from = SOURCE_PORT(key), to = DESTINATION_PORT(key);
    u32 zero = 0;
    u64 *full = full_at.lookup(&zero);
    if (!full || (protocol != IPPROTO_UDP && protocol != IPPROTO_TCP))
        return;
    bool response = from == bpf_htons(PORT);
    if (!response && to != bpf_htons(PORT))
        return;

    struct dns_flow flow = {.protocol = protocol};
    u64 *client = response ? key->destination : key->source;
    write_address(flow.client, client, VERSION(key));
    u64 *server = response ? key->source : key->destination;
    write_address(flow.server, server, VERSION(key));
    struct exchange none = {};
    struct exchange *exchange =
        *full == packet->now_ns ? flows.lookup(&flow) : flows.lookup_or_try_init(&flow, &none);
    if (!exchange) {
        *full = packet->now_ns;
        lose(LOSS_TABLE_FULL, packet->packets, packet->bytes);
    } else if (response) {
        add(&exchange->responses, packet);
        keep_largest(&exchange->largest, packet->bytes);
    } else {
        add(&exchange->queries, packet);
    }
}
