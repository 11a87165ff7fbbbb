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
#define MOST_SLOTS 40
#define PART_REGISTERS 1024
#define PART_BUCKETS 256

/* Part of the flow key whose values are distinguished. A pair is a flow with the reverse one. */
enum part {
    PART_FLOW,
    PART_SOURCE,
    PART_DESTINATION,
    PART_PORT,
    PART_SOURCE_PORT,
    PART_PAIR,
    PARTS = 8, /* a power of two */
};

/*
 * The largest hash value of a register, and the packets of the part that has it. That part is a
 * sample: each part has the same chance, however many packets it has.
 */
struct sampled {
    u32 value; /* as in `struct sketch`; the lowest bit of a pair's hash is its direction */
    u32 seen;  /* four times its packets, and bit n for direction n */
};

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
    struct sampled registers[PART_REGISTERS];
    struct bucket buckets[PART_BUCKETS];
};

BPF_F_TABLE("array", u32, struct slot, slot, CPUS, BPF_F_MMAPABLE); /* the model of all slots */
BPF_ARRAY_OF_MAPS(slots, "slot", SLOTS);

/* The keyed hash of an address or a port. */
static __always_inline u64 hash_part(u64 first, u64 second) {
    return mix64(CONSTANT(HASH_5) + fold64(first) * CONSTANT(HASH_0) +
                 fold64(second) * CONSTANT(HASH_1));
}

/* Without branches, which the verifier would follow for each slot. */
static __always_inline void observe_part(struct slot *slot, u64 hash, u64 packets) {
    struct sampled *largest = &slot->registers[hash & (PART_REGISTERS - 1)];
    u64 value = hash >> 32 | 1, is_larger = (s64)(largest->value - value) >> 63;
    u64 other = largest->value ^ value, is_it = (any_of(other) - 1) | is_larger;
    largest->value ^= other & is_larger;
    largest->seen =
        ((largest->seen & ~is_larger) + (packets * 4 & is_it)) | ((1 + (hash >> 32 & 1)) & is_it);
    struct bucket *bucket = &slot->buckets[hash >> 10 & (PART_BUCKETS - 1)];
    bucket->packets += packets;
    /* The candidate's packets vote for it, all others against it; then another one is elected. */
    u64 is_other = -any_of(bucket->candidate ^ value);
    s64 votes = bucket->votes + ((packets ^ is_other) - is_other), is_lost = votes >> 63;
    bucket->votes = (votes ^ is_lost) - is_lost;
    bucket->candidate ^= (bucket->candidate ^ value) & is_lost;
}

#define PAIR_DIRECTION (1ULL << 32) /* the bit of a hash that no register keeps */

/* The keyed hash of a flow that is the reverse one's, too, but for the direction. */
static __always_inline u64 hash_pair(struct flow_key *key, bool ported) {
    u64 from =
        hash_part(key->source[0], key->source[1]) + ported * SOURCE_PORT(key) * CONSTANT(HASH_2);
    u64 to = hash_part(key->destination[0], key->destination[1]) +
             ported * DESTINATION_PORT(key) * CONSTANT(HASH_2);
    u64 hash = mix64(mix64(from) + mix64(to) + PROTOCOL(key) * CONSTANT(HASH_4));
    return (hash & ~PAIR_DIRECTION) | (from < to) * PAIR_DIRECTION;
}

/* Write the keyed hashes of a packet's parts; 0 for a part that it lacks. `paired`: whether a slot
 * of pairs gets it. */
static __always_inline void hash_parts(u64 *hashes, struct flow_key *key, u64 hash, u64 paired) {
    u64 protocol = PROTOCOL(key), port = DESTINATION_PORT(key), source_port = SOURCE_PORT(key);
    bool ported = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == IPPROTO_SCTP;
    hashes[PART_FLOW] = hash;
    hashes[PART_SOURCE] = hash_part(key->source[0], key->source[1]);
    hashes[PART_DESTINATION] = hash_part(key->destination[0], key->destination[1]);
    hashes[PART_PORT] = ported && port ? hash_part(port, 0) : 0;
    hashes[PART_SOURCE_PORT] = ported && source_port ? hash_part(source_port, 0) : 0;
    if (paired)
        hashes[PART_PAIR] = hash_pair(key, ported);
}

static __always_inline struct slot *slot_at(u32 place) {
    u32 cpu = bpf_get_smp_processor_id();
    void *cpus = slots.lookup(&place);
    return cpus ? bpf_map_lookup_elem(cpus, &cpu) : 0;
}
