/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The keyed hash of a flow. HASH_0 .. HASH_6 are odd secrets. */
#pragma once

#include "packet.h"

/* So that the upper bits of a word, an IPv6 address's last bytes, reach all bits of the hash. */
static __always_inline u64 fold64(u64 word) {
    return word ^ word >> 32;
}

/* Spread all bits of a word over its upper half and its lower bits. */
static __always_inline u64 mix64(u64 hash) {
    hash ^= hash >> 32;
    hash *= CONSTANT(HASH_0);
    return hash ^ hash >> 29;
}

/*
 * Multilinear hashing with secret factors: nobody outside can aim at one place of a table. Of IPv4
 * three words are all, and have nothing in their upper halves.
 */
static __always_inline u64 hash_of(struct flow_key *key) {
    u64 hash = CONSTANT(HASH_5) + key->transport * CONSTANT(HASH_4);
#if TUNNELS || INTERFACES
    hash += fold64(key->tunnel) * CONSTANT(HASH_6);
#endif
    if (VERSION(key) == 4)
        hash += key->source[0] * CONSTANT(HASH_0) + key->destination[0] * CONSTANT(HASH_2);
    else
        hash += fold64(key->source[0]) * CONSTANT(HASH_0) +
                fold64(key->source[1]) * CONSTANT(HASH_1) +
                fold64(key->destination[0]) * CONSTANT(HASH_2) +
                fold64(key->destination[1]) * CONSTANT(HASH_3);
    return mix64(hash);
}
