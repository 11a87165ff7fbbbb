/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Selections of packets (S2.9): which of 64 filters a packet passes.
 *
 * A filter is a disjunction of conjunctions, each of which has a bit. For each part of a packet a
 * table holds, by value, the conjunctions that admit the value. ANDed, they leave the conjunctions
 * that hold. So a look-up costs the same for one filter and for many, for a port and for a range,
 * and for a term and its negation. probes/monitor/selection.py writes the tables.
 */
#pragma once

#include "packet.h"

#define SELECTIONS 64
#define PREFIXES 65536

/* Bits of these tables are conjunctions, unless said otherwise. */
struct selector {
    u64 active;         /* selections of active policies */
    u64 live;           /* in use */
    u64 by_source_port; /* these look at the source port, and so on */
    u64 by_destination_port;
    u64 by_source;
    u64 by_destination;
    u64 by_others;           /* at the VLAN or an address */
    u64 protocols[768];      /* by protocol; of IPv6, 512 further */
    u64 flags[256];          /* by TCP flags; 0 for other protocols */
    u64 source_classes[256]; /* by class of the port */
    u64 destination_classes[256];
    u64 selections[8 * 256];     /* bits of selections, by each eight conjunctions */
    u8 destination_ports[65536]; /* class of the port, by its number in network order */
    u8 source_ports[65536];      /* likewise; from here on, an address takes one more instruction */
    u64 vlans[4096];
};

struct prefix_v4 {
    u32 length;
    u32 address;
};

struct prefix_v6 {
    u32 length;
    u32 address[4];
};

BPF_F_TABLE("array", u32, struct selector, selectors, 1, BPF_F_MMAPABLE);
/* By prefix, of the conjunctions that look there; a prefix of length 0 is there if any is. */
BPF_F_TABLE("lpm_trie", struct prefix_v4, u64, sources_v4, PREFIXES, BPF_F_NO_PREALLOC);
BPF_F_TABLE("lpm_trie", struct prefix_v6, u64, sources_v6, PREFIXES, BPF_F_NO_PREALLOC);
BPF_F_TABLE("lpm_trie", struct prefix_v4, u64, destinations_v4, PREFIXES, BPF_F_NO_PREALLOC);
BPF_F_TABLE("lpm_trie", struct prefix_v6, u64, destinations_v6, PREFIXES, BPF_F_NO_PREALLOC);

static __always_inline struct prefix_v6 prefix_of(u64 *address) {
    return (struct prefix_v6){
        128,
        {(u32)address[0], address[0] >> 32, (u32)address[1], address[1] >> 32},
    };
}

static __always_inline u64 admitting_source(struct flow_key *key) {
    u64 *found;
    if (VERSION(key) == 4) {
        struct prefix_v4 whole = {32, (u32)key->source[0]};
        found = sources_v4.lookup(&whole);
    } else {
        struct prefix_v6 whole = prefix_of(key->source);
        found = sources_v6.lookup(&whole);
    }
    return found ? *found : 0;
}

static __always_inline u64 admitting_destination(struct flow_key *key) {
    u64 *found;
    if (VERSION(key) == 4) {
        struct prefix_v4 whole = {32, (u32)key->destination[0]};
        found = destinations_v4.lookup(&whole);
    } else {
        struct prefix_v6 whole = prefix_of(key->destination);
        found = destinations_v6.lookup(&whole);
    }
    return found ? *found : 0;
}

/*
 * A place below 64 for a single bit of a word, by de Bruijn's sequence: another one for each bit,
 * and cheaper than its number. User space has the same.
 */
static __always_inline u32 place_of(u64 bit) {
    return bit * 0x03f79d71b4cb0a89ULL >> 58;
}

static __always_inline struct selector *the_selector(void) {
    u32 zero = 0;
    return selectors.lookup(&zero);
}

/* The conjunctions that hold for a packet. The cheapest tables come first. */
static __always_inline u64 conjunctions_of(struct selector *selector, struct packet *packet) {
    struct flow_key *key = &packet->key;
    u64 held = selector->live;
    held &= selector->protocols[key->transport >> 32 & 0x2ff];
    held &= selector->flags[packet->tcp_flags & 0xff];
    if (!held)
        return 0;
    if (held & selector->by_destination_port)
        held &= selector->destination_classes[selector->destination_ports[DESTINATION_PORT(key)]];
    if (held & selector->by_source_port)
        held &= selector->source_classes[selector->source_ports[SOURCE_PORT(key)]];
    if (held & selector->by_others) {
        held &= selector->vlans[VLAN(key) & 0xfff];
        if (held & selector->by_source)
            held &= admitting_source(key) | ~selector->by_source;
        if (held & selector->by_destination)
            held &= admitting_destination(key) | ~selector->by_destination;
    }
    return held;
}

/* The selections that have one of these conjunctions. */
static __always_inline u64 selections_with(struct selector *selector, u64 held) {
    u64 found = selector->selections[held & 0xff];
    held >>= 8;
    /* Without an exit in the middle: the verifier would follow each. */
    if (held) {
#pragma unroll
        for (u64 at = 256; at < 8 * 256; at += 256, held >>= 8)
            found |= selector->selections[at + (held & 0xff)];
    }
    return found;
}

/* The selections that a packet is in. */
static __always_inline u64 selections_of(struct selector *selector, struct packet *packet) {
    return selections_with(selector, conjunctions_of(selector, packet));
}
