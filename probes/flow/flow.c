/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Counts every packet of a hook in the record of its flow.
 *
 * Each CPU has its own records, appended in order of arrival, and an index of 8-way sets that
 * finds a flow's record again. CPUs share neither, so no access is atomic. The index is a cache:
 * if a set is full, the newcomer takes a way and the old record stays where it is. So a flow may
 * have more than one record, and user space adds them up. No record is ever evicted. When the
 * records run out, each packet goes to the overflow ring as a single record; if the ring is full
 * too, the packet is counted as lost. Long before, at ALARM_AT records, user space is woken to swap
 * early.
 *
 * There are two generations of all this (S4.5): one is written while the other is read.
 *
 * The bytes of all packets also count in bins of time, for the peak of a window. Bins are a ring
 * that no swap empties: a bin's number stands above its bytes and tells one lap from the next.
 *
 * Tables are made for the CPUs that are online. Packets of a CPU that comes later go to the
 * overflow ring, until user space has made larger tables.
 *
 * RECORDS_PER_CPU, SETS_PER_CPU (powers of two), ALARM_AT, BIN_SHIFT, BIN_DIRECTION,
 * BIN_INTERFACES, HASH_0 .. HASH_6 (odd secrets) and LINK_ETHERNET come from probes/flow/probe.py.
 * RECORDS, SETS, CPUS, OVERFLOW_PAGES, DATAGRAMS and BIN_WORDS are 1 for the compiler; user space
 * makes the tables as large as probes/flow/records.py says.
 */
#include "probe.h"
#include "bits.h"
#include "hash.h"
#include "tracer.h"
#include "tunnel.h"
#include "capture.h"
#include "clock.h"

#define WAYS 8
#define LIKELY_WAYS 4  /* hold 96 of 100 flows of a table that is as full as at ALARM_AT */
#define NUMBER_BITS 17 /* RECORDS_PER_CPU is 1 << NUMBER_BITS at most */
#define NUMBER_MASK ((1 << NUMBER_BITS) - 1)
#define LATE_ALARM_MASK 15 /* at one time of 16 */
#define BINS 1024          /* of an interface on a CPU, as in probes/flow/records.py */

/* One cache line, for IPv4 and IPv6 alike; with TUNNELS or INTERFACES one word more. */
struct flow_record {
    struct flow_key key;
    u64 bytes;   /* and the first packet's type of service, in its highest byte */
    u64 packets; /* and the TCP flags of all of them, in its highest byte */
    u32 first;   /* packet_time(), its lower half */
    u32 last;
};
#define TOS_SHIFT 56
#define INTERFACE_SHIFT 40 /* in the tunnel's word of the key */
#define AGAIN_SHIFT 56
#define FLAGS_SHIFT 56

/* A way has a part of the hash, never 0, above the number of a record; 0: it is free. */
struct flow_set {
    u32 way[WAYS];
};

struct cpu_state {
    u32 records;
    u32 off;      /* user space wants no flows: packets count in one record an interface */
    u32 zero[14]; /* a cache line for each CPU */
};

BPF_F_TABLE("array", u32, struct flow_record, records, RECORDS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct flow_set, sets, SETS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct cpu_state, cpus, CPUS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, bins, BIN_WORDS, BPF_F_MMAPABLE);
BPF_RINGBUF_OUTPUT(overflow, OVERFLOW_PAGES);
BPF_RINGBUF_OUTPUT(alarm, 1);

static __always_inline bool same_flow(struct flow_key *a, struct flow_key *b) {
    return a->source[0] == b->source[0] && a->source[1] == b->source[1] &&
           a->destination[0] == b->destination[0] && a->destination[1] == b->destination[1] &&
#if TUNNELS || INTERFACES
           a->tunnel == b->tunnel &&
#endif
           a->transport == b->transport;
}

static __always_inline void fill(struct flow_record *record, struct packet *packet,
                                 struct wire_size *size, u64 now) {
    record->key = packet->key;
    record->bytes = size->bytes | packet->tos << TOS_SHIFT;
    record->packets = size->packets | packet->tcp_flags << FLAGS_SHIFT;
    record->first = now;
    record->last = now;
}

static __always_inline struct flow_record *record_of(u64 cpu, u64 number) {
    u32 at = cpu * CONSTANT(RECORDS_PER_CPU) + number;
    return records.lookup(&at);
}

/*
 * The entry of a tag in a set's first ways: 0 without one, and the last of several. There is no
 * branch on a way: which one it is differs from packet to packet, and a CPU that guesses wrong
 * loses more time than all the rest takes.
 */
static __always_inline u64 likely_entry(struct flow_set *set, u64 tag) {
    u64 entry = 0;
#pragma unroll
    for (u32 i = 0; i < LIKELY_WAYS; i++) {
        /* Below 0 where the way has the tag; else the numbers differ by more than NUMBER_MASK. */
        u64 own = (set->way[i] ^ tag) - (NUMBER_MASK + 1);
        entry ^= (entry ^ own) & opaque((s64)own >> 63);
    }
    return entry;
}

/* Add a packet to a record; false if that is another flow's. */
static __always_inline bool add(struct flow_record *record, struct packet *packet,
                                struct wire_size *size, u64 now) {
    if (!record || !same_flow(&record->key, &packet->key))
        return false;
    record->packets = (record->packets + size->packets) | packet->tcp_flags << FLAGS_SHIFT;
    record->bytes += size->bytes;
    record->last = now;
    return true;
}

/* Whether another interface's hook has counted the packet. Then a loss is one of another table: it
 * takes the place of LOSS_OVERRUN, which no other loss here has. */
static __always_inline bool is_again(struct packet *packet) {
#if INTERFACES
    return packet->key.tunnel >> AGAIN_SHIFT;
#else
    return false;
#endif
}

/* Send a record of this one packet to user space at once. */
static __always_inline void send_alone(struct packet *packet, struct wire_size *size, u64 now) {
    struct flow_record single;
    fill(&single, packet, size, now);
    if (overflow.ringbuf_output(&single, sizeof(single), BPF_RB_NO_WAKEUP))
        lose(is_again(packet) ? LOSS_OVERRUN : LOSS_TABLE_FULL, size->packets, size->bytes);
}

/* Begin a record with this packet: append it, or send it to user space at once. */
static __always_inline void append(struct flow_set *set, u64 way, u64 tag, u64 cpu,
                                   struct packet *packet, struct wire_size *size, u64 now) {
    u32 own = cpu;
    struct cpu_state *state = cpus.lookup(&own);
    if (!state)
        return;
    u64 number = state->records;
    struct flow_record *record = record_of(cpu, number);
    if (number >= CONSTANT(RECORDS_PER_CPU) || !record) {
        send_alone(packet, size, now);
        return;
    }
    fill(record, packet, size, now);
    state->records = number + 1;
    set->way[way & (WAYS - 1)] = tag | number;
    if (number + 1 == CONSTANT(ALARM_AT))
        alarm.ringbuf_output(&own, sizeof(own), BPF_RB_FORCE_WAKEUP);
}

/* Interfaces whose number is BIN_INTERFACES or more have no bins. */
static __always_inline void count_in_bin(u64 interface, u64 bytes) {
    if (interface >= CONSTANT(BIN_INTERFACES))
        return;
    u64 cpu = bpf_get_smp_processor_id(), number = (u32)coarse_time() >> CONSTANT(BIN_SHIFT);
    u64 row = (cpu * 2 + CONSTANT(BIN_DIRECTION)) * CONSTANT(BIN_INTERFACES) + interface;
    u32 at = row * BINS + (number & (BINS - 1));
    u64 *bin = bins.lookup(&at);
    if (bin)
        *bin = (*bin >> 32 == number ? *bin : number << 32) + bytes;
}

static __always_inline void count(struct packet *packet, struct wire_size *size) {
    u64 now = packet_time();
    u64 cpu = bpf_get_smp_processor_id();
    u64 hash = hash_of(&packet->key);
    u64 tag = (hash >> 49 | 1) << NUMBER_BITS;
    u32 set_at = cpu * CONSTANT(SETS_PER_CPU) + (hash & (CONSTANT(SETS_PER_CPU) - 1));
    struct flow_set *set = sets.lookup(&set_at);
    if (!set) {
        /* A CPU that came later. Not always: user space may lack the memory for larger tables. */
        u32 own = cpu;
        if (!(now & LATE_ALARM_MASK))
            alarm.ringbuf_output(&own, sizeof(own), BPF_RB_FORCE_WAKEUP);
        send_alone(packet, size, now);
        return;
    }

    u64 found = likely_entry(set, tag);
    if (likely(found) && add(record_of(cpu, found & NUMBER_MASK), packet, size, now))
        return;
    /* Where no way is free, one is taken that the hash picks. */
    u64 way = hash >> 32;
#pragma unroll
    for (u32 i = 0; i < WAYS; i++) {
        u64 entry = set->way[i];
        if (!entry) {
            way = i;
            break;
        }
        if ((entry ^ tag) <= NUMBER_MASK &&
            add(record_of(cpu, entry & NUMBER_MASK), packet, size, now))
            return;
    }
    append(set, way, tag, cpu, packet, size, now);
}

static __always_inline bool is_off(void) {
    u32 own = bpf_get_smp_processor_id();
    struct cpu_state *state = cpus.lookup(&own);
    return state && state->off;
}

static __always_inline void take(struct packet *packet, struct wire_size *size, u64 where,
                                 bool off) {
#if INTERFACES
    packet->key.tunnel |= where;
#endif
    if (off || captured(packet))
        count(packet, size);
    else if (!is_again(packet))
        lose(LOSS_FILTERED, size->packets, size->bytes);
}

int flow(CONTEXT *ctx) {
    if (is_tracers(ctx))
        return VERDICT_PASS;
    struct packet packet = {};
    struct wire_size size = size_on_wire(ctx);
    u64 where = (u64)INTERFACE(ctx) << INTERFACE_SHIFT | (u64)COUNTED_BEFORE(ctx) << AGAIN_SHIFT;
    count_in_bin(forget(INTERFACE(ctx)), size.bytes);
    /* A key without an IP version: user space counts its packets as cut. */
    bool off = is_off();
    if (!off) {
        if (!parse_flow(ctx, &packet, size.packets, size.bytes))
            return VERDICT_PASS;
#if TUNNELS
        struct inside *inside = enter_tunnels(ctx, &packet);
        if (TUNNELS == 2 && inside)
            take(&inside->outer, &size, where, false);
#endif
    }
    take(&packet, &size, where, off);
    return VERDICT_PASS;
}
