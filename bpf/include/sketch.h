/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Counters of the monitor, shared by its programs: monitor.c counts incoming packets, outgoing.c
 * outgoing ones.
 *
 * CPUS, REGISTERS (a power of two) and RECORDS come from probes/monitor/programs.py.
 */
#pragma once

#include "hash.h"
#include "probe.h"
#include "select.h"
#include "slots.h"

#define COMBINATIONS 256 /* places; several combinations may share one */

#define NO_PROTOCOL 256 /* not IP, or not parsed; ARP requests and replies come next */
#define TALLIES (NO_PROTOCOL + 3)

#define TCP_FLAGS 63 /* FIN, SYN, RST, PSH, ACK and URG */
#define FRAGMENT 64

/* Packets for which these conjunctions hold, and no other one. */
struct combination {
    u64 held;
    struct wire_size size;
};

/* Counters of selections, for one direction. */
struct selected_counters {
    struct wire_size selected[SELECTIONS]; /* by `place_of` the selection */
    u64 slots_of[SELECTIONS];              /* likewise: bits of its slots */
    u64 counted;                           /* selections that are counted */
};

/* Counters of one CPU in this window, and user space's settings for them. */
struct sketch {
    struct wire_size tallies[TALLIES]; /* by protocol: user space adds up the eight counters */
    u64 flags[2 * FRAGMENT]; /* packets by TCP flags, 0 for others; a fragment has FRAGMENT too */
    struct combination combined[COMBINATIONS]; /* their packets are in no `incoming` */
    struct selected_counters incoming, outgoing;
    u32 parts[SLOTS];           /* by `place_of` the slot */
    u64 selection_of[SLOTS];    /* likewise: the bit of its selection */
    u64 hashes[RECORDS][PARTS]; /* of this packet */
    u64 sketched;               /* selections with slots */
    u64 paired;                 /* selections with slots of pairs */
    u32 registers[REGISTERS];   /* 0: empty */
};

BPF_F_TABLE("array", u32, struct sketch, sketches, CPUS, BPF_F_MMAPABLE);

static __always_inline void count(struct wire_size *tally, struct wire_size size) {
    tally->packets += size.packets;
    tally->bytes += size.bytes;
}

/* Count a packet by the conjunctions that hold for it: one counter, however many they are. False if
 * other ones have the place in this window. */
static __always_inline bool count_combined(struct sketch *sketch, u64 held, struct wire_size size) {
    struct combination *own = &sketch->combined[mix64(held) & (COMBINATIONS - 1)];
    if (!own->size.packets)
        own->held = held;
    if (own->held != held)
        return false;
    count(&own->size, size);
    return true;
}

/* Count a packet for its selections, and its parts for those that have slots. */
static __always_inline void observe_selections(struct sketch *sketch,
                                               struct selected_counters *counters,
                                               struct flow_key *key, struct wire_size size,
                                               u64 hash, u64 selections) {
    u64 slots_left = 0, paired = selections & sketch->paired;
    for (u64 n = 0; n < SELECTIONS && selections; n++) {
        u32 place = place_of(selections & -selections);
        selections &= selections - 1;
        count(&counters->selected[place], size);
        slots_left |= counters->slots_of[place];
    }
    if (!slots_left)
        return;
    u64 *hashes = sketch->hashes[0];
    hash_parts(hashes, key, hash, paired);
    for (u64 n = 0; n < MOST_SLOTS && slots_left; n++) {
        u32 place = place_of(slots_left & -slots_left);
        slots_left &= slots_left - 1;
        u64 part = hashes[sketch->parts[place] & (PARTS - 1)];
        struct slot *slot = slot_at(place);
        if (slot && part)
            observe_part(slot, part, size.packets);
    }
}
