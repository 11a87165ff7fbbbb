/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The rate of probes to a destination, and the hop that each of them goes to. */
#ifndef METER_H
#define METER_H

#include "bits.h"
#include "path.h"

/*
 * Whether a probe may be sent now: the generic cell rate algorithm (ITU-T I.371). A packet that
 * comes up to an interval late does not delay the next probe, so that the rate is reached. After a
 * longer pause only the chosen burst is made up for.
 */
static __always_inline bool due(struct target *target, u64 now) {
    u64 next = target->next_ns, interval = target->interval_ns;
    if (next > now)
        return false;
    u64 from = next;
    if (from + target->credit_ns + interval < now)
        from = now - target->credit_ns;
    return __sync_val_compare_and_swap(&target->next_ns, next, from + interval) == next;
}

/*
 * Take the hop of the next probe; 0 if no hop is to be probed. Each live hop has one turn in a
 * round. The order is random: with a fixed one, two flows that send in turn would each probe only
 * every other hop. Two CPUs may very seldom give a hop two turns.
 */
static __always_inline u32 next_hop(struct target *target) {
    u32 asked = target->asked ^ target->done;
    if (asked) {
        u32 hop = lowest(asked);
        target->done ^= 1U << hop;
        return hop;
    }
    u32 round = target->round & target->live;
    if (!round)
        round = target->live;
    if (!round)
        return 0;
    u32 from = 1 + ((u64)bpf_get_prandom_u32() * highest(round) >> 32);
    u32 hop = lowest(round & ~0U << from);
    target->round = round & ~(1U << hop);
    return hop;
}

#endif
