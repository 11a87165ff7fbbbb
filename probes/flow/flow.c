/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * noobflow: every packet of a hook counted in its flow's record.
 *
 * Each CPU has records of its own, appended in order of arrival, and an index of 8-way sets that
 * finds a flow's record again; nothing is shared between CPUs and nothing is atomic. The index is
 * a cache: where a set is full, the newcomer takes a way and the old record stays where it is. A
 * flow may so have more than one record, and user space adds them up: nothing is ever evicted.
 * When the records run out a packet goes to the overflow ring by itself, and when that is full too
 * it is counted as lost. Long before, at ALARM_AT records, user space is woken to swap early.
 *
 * There are two generations of all this (S4.5): one is written while the other is read.
 *
 * CPUS, RECORDS_PER_CPU, SETS_PER_CPU (powers of two), ALARM_AT, OVERFLOW_PAGES, HASH_0 .. HASH_5
 * (odd secrets) and LINK_ETHERNET come from probes/flow/program.py.
 */
#include "probe.h"
#include "packet.h"
#include "capture.h"

#define WAYS 8
#define HEADERS_PULLED 512

/* One cache line, for IPv4 and IPv6 alike. */
struct flow_record {
    struct flow_key key;
    u64 bytes;
    u32 packets;
    u32 first; /* jiffies, lower half: a tick's resolution, at a twentieth of a clock's price */
    u32 last;
    u32 tcp_flags;
};

struct flow_set {
    u32 tag[WAYS];    /* the hash's upper half, 1 at least; 0: the way is free */
    u32 record[WAYS]; /* number of the record on this CPU */
};

struct cpu_state {
    struct packet packet;
    u32 records;
    u32 zero[3]; /* a cache line for each CPU */
};

BPF_F_TABLE("array", u32, struct flow_record, records, CPUS *RECORDS_PER_CPU, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct flow_set, sets, CPUS *SETS_PER_CPU, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct cpu_state, cpus, CPUS, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(overflow, OVERFLOW_PAGES);
BPF_RINGBUF_OUTPUT(alarm, 1);

/* Multilinear hashing with secret factors: nobody outside can aim at one set. */
static __always_inline u64 hash_of(struct flow_key *key) {
    u64 hash = HASH_5 + key->source[0] * HASH_0 + key->source[1] * HASH_1 +
               key->destination[0] * HASH_2 + key->destination[1] * HASH_3 +
               key->transport.word * HASH_4;
    hash ^= hash >> 32;
    hash *= HASH_0;
    return hash ^ hash >> 29;
}

static __always_inline bool same_flow(struct flow_key *a, struct flow_key *b) {
    return a->source[0] == b->source[0] && a->source[1] == b->source[1] &&
           a->destination[0] == b->destination[0] && a->destination[1] == b->destination[1] &&
           a->transport.word == b->transport.word;
}

static __always_inline void fill(struct flow_record *record, struct packet *packet, u32 packets,
                                 u64 bytes, u32 now) {
    record->key = packet->key;
    record->bytes = bytes;
    record->packets = packets;
    record->first = now;
    record->last = now;
    record->tcp_flags = packet->tcp_flags;
}

static __always_inline void overflow_or_lose(struct packet *packet, u32 packets, u64 bytes,
                                             u32 now) {
    struct flow_record record;
    fill(&record, packet, packets, bytes, now);
    if (overflow.ringbuf_output(&record, sizeof(record), BPF_RB_NO_WAKEUP))
        lose(LOSS_TABLE_FULL, packets, bytes);
}

static __always_inline void count(struct cpu_state *state, u32 cpu, u32 packets, u64 bytes) {
    struct packet *packet = &state->packet;
    u32 now = bpf_jiffies64();
    u64 hash = hash_of(&packet->key);
    u32 tag = hash >> 32 | 1;
    u32 set_at = cpu * SETS_PER_CPU + ((u32)hash & (SETS_PER_CPU - 1));
    struct flow_set *set = sets.lookup(&set_at);
    if (!set)
        return;

    u32 way = WAYS;
#pragma unroll
    for (u32 i = 0; i < WAYS; i++) {
        if (set->tag[i] == tag) {
            u32 at = cpu * RECORDS_PER_CPU + set->record[i];
            struct flow_record *record = records.lookup(&at);
            if (record && same_flow(&record->key, &packet->key)) {
                record->packets += packets;
                record->bytes += bytes;
                record->last = now;
                record->tcp_flags |= packet->tcp_flags;
                return;
            }
        }
        if (!set->tag[i]) {
            way = i;
            break;
        }
    }

    u32 number = state->records;
    u32 at = cpu * RECORDS_PER_CPU + number;
    struct flow_record *record = records.lookup(&at);
    if (number >= RECORDS_PER_CPU || !record) {
        overflow_or_lose(packet, packets, bytes, now);
        return;
    }
    fill(record, packet, packets, bytes, now);
    state->records = number + 1;
    way = way < WAYS ? way : number & (WAYS - 1);
    set->tag[way] = tag;
    set->record[way] = number;
    if (number + 1 == ALARM_AT)
        alarm.ringbuf_output(&cpu, sizeof(cpu), BPF_RB_FORCE_WAKEUP);
}

int flow(CONTEXT *ctx) {
    u32 cpu = bpf_get_smp_processor_id();
    struct cpu_state *state = cpus.lookup(&cpu);
    if (!state)
        return pass_on(ctx);
    struct packet *packet = &state->packet;
    u32 packets = 1;
#ifdef HOOK_XDP
    u64 bytes = ctx->data_end - ctx->data;
    *packet = (struct packet){};
    int result = parse((void *)(long)ctx->data, (void *)(long)ctx->data_end, packet);
#else
    /* What goes over the wire: a large segment is cut into packets, each with headers, later on. */
#ifdef HOOK_TC_EGRESS
    u64 bytes = ctx->wire_len ? ctx->wire_len : ctx->len;
#else
    u64 bytes = ctx->len;
#endif
    if (ctx->gso_segs)
        packets = ctx->gso_segs;
    int result;
#pragma nounroll
    for (int attempt = 0; attempt < 2; attempt++) {
        *packet = (struct packet){};
        result = parse((void *)(long)ctx->data, (void *)(long)ctx->data_end, packet);
        if (result != PARSED_CUT && result != PARSED_SHORT)
            break;
        if (bpf_skb_pull_data(ctx, min(ctx->len, (u32)HEADERS_PULLED)))
            break;
    }
#endif
    if (result == PARSED_NOT_IP)
        lose(LOSS_NOT_IP, packets, bytes);
    else if (result == PARSED_MALFORMED || result == PARSED_SHORT)
        lose(LOSS_MALFORMED, packets, bytes);
    else if (!captured(packet))
        lose(LOSS_FILTERED, packets, bytes);
    else
        count(state, cpu, packets, bytes);
    return pass_on(ctx);
}
