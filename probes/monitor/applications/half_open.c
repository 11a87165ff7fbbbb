/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Half-open TCP (S2.18): connections with a SYN that the client has neither confirmed by an ACK nor
 * given up by a RST. Only the client's packets are seen: whether the server answered is unknown,
 * and whether an ACK has the right number.
 *
 * `handshakes` keeps them from the first SYN on; user space removes old ones (`expire`). If a flood
 * has filled it, further SYNs are counted as lost, but still counted for their destination.
 * `destinations` and `sources` are of one window. A source that sends much enters the table early,
 * even among randomly forged ones.
 *
 * A full table is not asked again before the next tick: searching for room takes longer than the
 * rest.
 *
 * HANDSHAKES, DESTINATIONS and SOURCES, the most entries of each, come from the configuration.
 */
#include "application.h"
#include "address.h"
#include "tcp_flags.h"

struct connection {
    u64 source[2];
    u64 destination[2];
    u32 source_port;
    u32 destination_port;
};

struct handshake {
    u64 since; /* the first SYN's time */
    u64 syns;
};

struct destination {
    u64 destination[2];
    u64 destination_port;
};

struct source {
    u64 source[2];
};

struct counts {
    u64 syns;
    u64 completed;
    u64 resets;
    u64 missed; /* SYNs of new handshakes without room */
};

/* When each table was last full, on this CPU. */
struct full {
    u64 handshakes;
    u64 destinations;
    u64 sources;
};

BPF_HASH(handshakes, struct connection, struct handshake, HANDSHAKES);
BPF_PERCPU_HASH(destinations, struct destination, struct counts, DESTINATIONS);
BPF_PERCPU_HASH(sources, struct source, struct counts, SOURCES);
BPF_PERCPU_ARRAY(full, struct full, 1);

static __always_inline void add(struct counts *counts, struct counts *change) {
    counts->syns += change->syns;
    counts->completed += change->completed;
    counts->resets += change->resets;
    counts->missed += change->missed;
}

APPLICATION(half_open) {
    struct flow_key *flow = &packet->packet.key;
    /* 0 if the packet is not TCP. */
    u64 flags = packet->packet.tcp_flags & (TCP_SYN | TCP_RST | TCP_ACK);
    u32 zero = 0;
    struct full *full_at = full.lookup(&zero);
    if (!flags || flags == (TCP_SYN | TCP_ACK) || !full_at)
        return;

    struct connection connection = {};
    write_address(connection.source, flow->source, VERSION(flow));
    write_address(connection.destination, flow->destination, VERSION(flow));
    connection.source_port = bpf_ntohs(SOURCE_PORT(flow));
    connection.destination_port = bpf_ntohs(DESTINATION_PORT(flow));

    u64 now = packet->now_ns;
    struct handshake *handshake = handshakes.lookup(&connection);
    struct counts change = {};
    bool lost = false;
    if (flags == TCP_SYN) {
        change.syns = 1;
        struct handshake begun = {.since = now, .syns = 1};
        if (handshake) {
            handshake->syns += 1;
        } else if (full_at->handshakes == now || handshakes.insert(&connection, &begun)) {
            full_at->handshakes = now;
            change.missed = 1;
            lost = true;
        }
    } else if (!handshake || handshakes.delete(&connection)) {
        return;
    } else if (flags & TCP_RST) {
        change.resets = 1;
    } else {
        change.completed = 1;
    }

    struct counts none = {};
    struct destination to = {};
    to.destination[0] = connection.destination[0];
    to.destination[1] = connection.destination[1];
    to.destination_port = connection.destination_port;
    struct counts *counts = full_at->destinations == now
                                ? destinations.lookup(&to)
                                : destinations.lookup_or_try_init(&to, &none);
    if (counts) {
        add(counts, &change);
    } else {
        full_at->destinations = now;
        lost = true;
    }

    struct source from = {};
    from.source[0] = connection.source[0];
    from.source[1] = connection.source[1];
    counts =
        full_at->sources == now ? sources.lookup(&from) : sources.lookup_or_try_init(&from, &none);
    if (counts) {
        add(counts, &change);
    } else {
        full_at->sources = now;
        lost = true;
    }
    if (lost)
        lose(LOSS_TABLE_FULL, packet->packets, packet->bytes);
}
