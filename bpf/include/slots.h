/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sketch slots: the distinct values of a part of the flow key among a selection's packets, and
 * their largest shares. probes/monitor/selected_counters.py makes the maps of the slots in use.
 *
 * CPUS comes from probes/monitor/programs.py.
 */
#pragma once

#include "bits.h"
#include "hash.h"

#define SLOTS 64 /* places; fewer are in use */
#define MOST_SLOTS 32
#define PART_REGISTERS 1024
#define PART_BUCKETS 256

/* Part of the flow key whose values are distinguished. */
enum part { PART_FLOW, PART_SOURCE, PART_DESTINATION, PART_PORT, PARTS };

/*
 * Packets of all values with the same hash bits, and the value with most of them (Boyer and Moore's
 * majority vote): it has between `votes` and (packets + votes) / 2, every other value at most
 * (packets - votes) / 2.
 */
struct bucket {
    u64 packets;
    u32 candidate; /* upper half of its hash */
    u32 votes;
};

/* One CPU's distinct values of a part, and their largest shares, among a selection's packets. */
struct slot {
    u32 registers[PART_REGISTERS]; /* as in `struct sketch` */
    struct bucket buckets[PART_BUCKETS];
};

BPF_F_TABLE("array", u32, struct slot, slot, CPUS, BPF_F_MMAPABLE); /* the model of all slots */
BPF_ARRAY_OF_MAPS(slots, "slot", SLOTS);

/* The keyed hash of an address or a port. */
static __always_inline u64 hash_part(u64 first, u64 second) {
    return mix64(HASH_5 + fold64(first) * HASH_0 + fold64(second) * HASH_1);
}

/* Without branches, which the verifier would follow for each slot. */
static __always_inline void observe_part(struct slot *slot, u64 hash, u64 packets) {
    u32 *largest = &slot->registers[hash & (PART_REGISTERS - 1)];
    u64 value = hash >> 32 | 1, is_larger = (s64)(*largest - value) >> 63;
    *largest ^= (*largest ^ value) & is_larger;
    struct bucket *bucket = &slot->buckets[hash >> 10 & (PART_BUCKETS - 1)];
    bucket->packets += packets;
    /* The candidate's packets vote for it, all others against it; then another one is elected. */
    u64 is_other = -any_of(bucket->candidate ^ value);
    s64 votes = bucket->votes + ((packets ^ is_other) - is_other), is_lost = votes >> 63;
    bucket->votes = (votes ^ is_lost) - is_lost;
    bucket->candidate ^= (bucket->candidate ^ value) & is_lost;
}

/* Write the keyed hashes of a packet's parts; 0 for a part that it lacks. */
static __always_inline void hash_parts(u64 *hashes, struct flow_key *key, u64 hash) {
    u64 protocol = PROTOCOL(key), port = DESTINATION_PORT(key);
    bool ported = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
    hashes[PART_FLOW] = hash;
    hashes[PART_SOURCE] = hash_part(key->source[0], key->source[1]);
    hashes[PART_DESTINATION] = hash_part(key->destination[0], key->destination[1]);
    hashes[PART_PORT] = ported && port ? hash_part(port, 0) : 0;
}

static __always_inline struct slot *slot_at(u32 place) {
    u32 cpu = bpf_get_smp_processor_id();
    void *cpus = slots.lookup(&place);
    return cpus ? bpf_map_lookup_elem(cpus, &cpu) : 0;
}
