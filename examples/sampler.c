/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A token bucket. Each CPU parses at most RATE packets a second, and up to BURST at once after a
 * quiet time. It counts all packets, so that a reader can scale the samples up.
 */
#include "packet.h"

#define RATE 1000
#define BURST 100
#define SECOND 1000000000ULL
#define TOKEN (SECOND / RATE) /* nanoseconds */

struct bucket {
    u64 full_at; /* time at which the bucket is full again */
};

struct sampling {
    u64 seen;
    u64 sampled;
};

BPF_PERCPU_ARRAY(bucket, struct bucket, 1);
BPF_PERCPU_ARRAY(sampling, struct sampling, 1);
BPF_PERCPU_ARRAY(protocols, u64, 256);

static __always_inline bool take(struct bucket *bucket) {
    u64 now = bpf_ktime_get_ns();
    u64 full_at = max(bucket->full_at, now) + TOKEN;
    if (full_at > now + BURST * TOKEN)
        return false;
    bucket->full_at = full_at;
    return true;
}

static __always_inline void look_at(CONTEXT *ctx) {
    struct packet packet = {};
    u32 protocol = 255; /* a reserved number stands for packets that are not IP */
    if (parse_packet(ctx, &packet) <= PARSED_CUT)
        protocol = PROTOCOL(&packet.key);
    u64 *sampled = protocols.lookup(&protocol);
    if (sampled)
        *sampled += 1;
}

int sample(CONTEXT *ctx) {
    u32 zero = 0;
    struct bucket *tokens = bucket.lookup(&zero);
    struct sampling *count = sampling.lookup(&zero);
    if (!tokens || !count)
        return VERDICT_PASS;
    count->seen += 1;
    if (take(tokens)) {
        count->sampled += 1;
        look_at(ctx);
    }
    return VERDICT_PASS;
}
