/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Heavy hitters: flows, or other keys, with a large share of a window's traffic.
 *
 * `hitters` has the flows that reached a quarter of that share, and counts them exactly from then
 * on. All others are candidates, counted by Space-Saving (Metwally et al., 2005) in sets of 8 by a
 * keyed hash: in a full set a newcomer replaces the smallest candidate. The newcomer's earlier
 * count is unknown, but at most the largest forgotten count: this is how much it may have missed.
 * So for any traffic,
 *
 * - a flow has at least its count, and at most its count plus the missed amount;
 * - a flow outside of `hitters` has less than a quarter of the share.
 *
 * With fewer flows than candidates, nearly all counts are exact. Each CPU counts for itself, with
 * its own total (S2.21), and user space adds up. If `hitters` is full, a flow's count is a loss.
 *
 * SHARE, in thousandths; BY_BYTES, 0 for shares of packets; ENTRIES of `hitters`, SETS of
 * candidates on each CPU (a power of two), and the macros of key.h come from the configuration,
 * HASH_0 .. HASH_5 from probes/monitor/programs.py.
 */
#include "application.h"
#include "hash.h"
#include "key.h"

#if SETS & (SETS - 1)
#error "SETS must be a power of two"
#endif

#define WAYS 8
#define WEIGHT(of) (BY_BYTES ? (of)->bytes : (of)->packets)

struct hitter {
    struct key flow;
    u64 cpu;
};

struct counts {
    u64 packets;
    u64 bytes;
    u64 missed; /* at most: bytes, or packets for shares of packets */
};

struct total {
    u64 packets;
    u64 bytes;
};

struct candidate {
    struct key flow;
    u64 packets;
    u64 bytes;
};

struct set {
    u64 window;     /* window of all other fields */
    u64 missed;     /* at most, by any flow outside of the set */
    u64 most[WAYS]; /* upper limit of each candidate; 0: the place is free */
    u32 tag[WAYS];  /* of the hash; 0: the place is free */
    struct candidate candidates[WAYS];
};

BPF_HASH(hitters, struct hitter, struct counts, ENTRIES);
BPF_PERCPU_ARRAY(totals, struct total, 1);
BPF_PERCPU_ARRAY(windows, u64, 1); /* number of windows so far, on this CPU */
BPF_PERCPU_ARRAY(sets, struct set, SETS);

static __always_inline bool same_key(struct key *a, struct key *b) {
    u64 *left = (u64 *)a, *right = (u64 *)b;
    return left[0] == right[0] && left[1] == right[1] && left[2] == right[2] &&
           left[3] == right[3] && left[4] == right[4];
}

/* Count a packet among the candidates, or promote its flow to a hitter. */
static __always_inline void consider(struct set *set, u32 tag, struct hitter *hitter,
                                     struct selected *packet, u64 total) {
    u32 at = 0;
    u64 least = ~0ULL;
    bool known = false;
#pragma unroll
    for (u32 way = 0; way < WAYS; way++) {
        if (set->tag[way] == tag && same_key(&set->candidates[way].flow, &hitter->flow)) {
            at = way;
            known = true;
            break;
        }
        if (set->most[way] < least) {
            least = set->most[way];
            at = way;
        }
    }
    at &= WAYS - 1;
    struct candidate *candidate = &set->candidates[at];
    if (!known) {
        if (set->missed < least)
            set->missed = least;
        set->tag[at] = tag;
        set->most[at] = set->missed;
        *candidate = (struct candidate){.flow = hitter->flow};
    }
    candidate->packets += packet->packets;
    candidate->bytes += packet->bytes;
    set->most[at] += WEIGHT(packet);
    if (set->most[at] * 4000 < total * SHARE)
        return;

    struct counts counts = {candidate->packets, candidate->bytes};
    counts.missed = set->most[at] - WEIGHT(candidate);
    if (hitters.insert(hitter, &counts))
        lose(LOSS_TABLE_FULL, counts.packets, counts.bytes);
    set->tag[at] = 0;
    set->most[at] = 0;
}

APPLICATION(heavy_hitters) {
    u32 zero = 0;
    struct total *total = totals.lookup(&zero);
    u64 *window = windows.lookup(&zero);
    if (!total || !window)
        return;
    if (!total->packets)
        *window += 1;
    total->packets += packet->packets;
    total->bytes += packet->bytes;

    struct hitter hitter = {.cpu = bpf_get_smp_processor_id()};
    write_key(&hitter.flow, &packet->packet.key);
    struct counts *counts = hitters.lookup(&hitter);
    if (counts) {
        counts->packets += packet->packets;
        counts->bytes += packet->bytes;
        return;
    }
    struct flow_key flow = {};
    *(struct key *)&flow = hitter.flow; /* five words, as the flow's */
    u64 hash = hash_of(&flow);
    u32 set_at = hash & (SETS - 1);
    struct set *set = sets.lookup(&set_at);
    if (!set)
        return;
    if (set->window != *window) {
        set->window = *window;
        set->missed = 0;
        __builtin_memset(set->most, 0, sizeof(set->most) + sizeof(set->tag));
    }
    consider(set, hash >> 32 | 1, &hitter, packet, WEIGHT(total));
}
