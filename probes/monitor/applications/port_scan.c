/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Port scans: how many ports each source tries (a vertical scan), and how many hosts it tries at
 * one port (a horizontal one). A packet tries a port if it is UDP, or TCP with neither ACK nor RST:
 * a SYN, or the packets of FIN, null and Xmas scans send. All counts are of one window.
 *
 * `seen` tells whether a source's port, or a host at it, came before: one slot, by a keyed hash. So
 * a count is exact except for flows whose slot another flow had taken. The counts add up to the
 * taken slots, from which user space estimates the missing ones. Sources need no sketch of their
 * own, and a source with few ports is as exact as one with all.
 *
 * Each port of a source takes an entry of `targets`, up to FOLLOWED ports: otherwise a single
 * vertical scan would fill it. A full table is not asked again before the next tick: searching for
 * room takes longer than the rest.
 *
 * UDP from a port below ANSWERS to a port from there on counts as an answer, because a resolver
 * answers each query to another port of the client.
 *
 * SOURCES and TARGETS, the most entries, LINES of 64 slots (a power of two), FOLLOWED and ANSWERS
 * come from the configuration, HASH_0 .. HASH_5 from probes/monitor/programs.py.
 */
#include "application.h"
#include "address.h"
#include "hash.h"
#include "tcp_flags.h"

#define SLOTS 64
_Static_assert((LINES & (LINES - 1)) == 0, "LINES must be a power of two");

struct source {
    u64 source[2];
};

struct tried {
    u64 ports; /* distinct */
    u64 packets;
    u64 first;
    u64 last;
};

struct target {
    u64 source[2];
    u32 protocol;
    u32 destination_port;
};

struct reached {
    u64 hosts; /* distinct */
    u64 packets;
    u64 first;
    u64 last;
};

struct line {
    u8 slots[SLOTS];
};

/* When each table was last full, on this CPU. */
struct full {
    u64 sources;
    u64 targets;
};

BPF_HASH(sources, struct source, struct tried, SOURCES);
BPF_HASH(targets, struct target, struct reached, TARGETS);
BPF_ARRAY(seen, struct line, LINES);
BPF_PERCPU_ARRAY(full, struct full, 1);

/* The port that a packet tries, host order; 0: none. A later fragment has no TCP flags to tell. */
static __always_inline u32 port_of(struct packet *packet) {
    u64 protocol = PROTOCOL(&packet->key);
    u32 from = bpf_ntohs(SOURCE_PORT(&packet->key)), to = bpf_ntohs(DESTINATION_PORT(&packet->key));
    if (is_later_fragment(packet))
        return 0;
    if (protocol == IPPROTO_TCP)
        return packet->tcp_flags & (TCP_RST | TCP_ACK) ? 0 : to;
    return protocol != IPPROTO_UDP || (from < ANSWERS && to >= ANSWERS) ? 0 : to;
}

/* Take this hash's slot. Returns whether it was free. */
static __always_inline bool is_new(u64 hash) {
    u32 at = hash >> 32 & (LINES - 1);
    struct line *line = seen.lookup(&at);
    if (!line || line->slots[hash & (SLOTS - 1)])
        return false;
    line->slots[hash & (SLOTS - 1)] = 1;
    return true;
}

APPLICATION(port_scan) {
    struct flow_key *flow = &packet->packet.key;
    u32 zero = 0, port = port_of(&packet->packet);
    struct full *full_at = full.lookup(&zero);
    if (!port || !full_at)
        return;

    u64 now = packet->now_ns;
    struct source from = {};
    write_address(from.source, flow->source, VERSION(flow));
    struct tried nothing = {.first = now};
    struct tried *tried = full_at->sources == now ? sources.lookup(&from)
                                                  : sources.lookup_or_try_init(&from, &nothing);
    if (!tried) {
        full_at->sources = now;
        lose(LOSS_TABLE_FULL, packet->packets, packet->bytes);
        return;
    }
    struct flow_key what = {};
    what.source[0] = flow->source[0];
    what.source[1] = flow->source[1];
    what.transport = flow->transport & ~0xffffULL; /* all but the source port */
    if (is_new(hash_of(&what)))
        lock_xadd(&tried->ports, 1);
    lock_xadd(&tried->packets, packet->packets);
    tried->last = now;

    struct target at = {};
    at.source[0] = from.source[0];
    at.source[1] = from.source[1];
    at.protocol = PROTOCOL(flow);
    at.destination_port = port;
    struct reached none = {.first = now};
    bool followed = tried->ports <= FOLLOWED;
    struct reached *reached = !followed || full_at->targets == now
                                  ? targets.lookup(&at)
                                  : targets.lookup_or_try_init(&at, &none);
    if (!reached) {
        if (followed) {
            full_at->targets = now;
            lose(LOSS_TABLE_FULL, packet->packets, packet->bytes);
        }
        return;
    }
    what.destination[0] = flow->destination[0];
    what.destination[1] = flow->destination[1];
    if (is_new(hash_of(&what)))
        lock_xadd(&reached->hosts, 1);
    lock_xadd(&reached->packets, packet->packets);
    reached->last = now;
}
