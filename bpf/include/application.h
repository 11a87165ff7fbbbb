/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * An application of the monitor (S2.16): what it is given, and its entry.
 *
 *     #include "application.h"
 *
 *     APPLICATION(count) {
 *         ... packet->packet.key, packet->bytes ...
 *     }
 *
 * The packet has been parsed and selected. If RECORDS is 1, `ctx` has its bytes, and
 * `packet->packet.network_at` and `transport_at` are the offsets of its headers. Otherwise its
 * bytes are out of reach: a switch saw the packet, and sent a record of it. The body may `return`.
 * It is passive: the packet goes on to the next application, and the monitor decides where that
 * ends.
 *
 * RECORDS, the most packets that one frame tells of, comes from probes/monitor/programs.py: 1,
 * unless frames carry telemetry.
 */
#pragma once

#include "bits.h"
#include "packet.h"

#define APPLICATIONS 16

/* One packet, or one record of a packet that a switch saw. */
struct selected {
    struct packet packet;
    u64 packets; /* on the wire: a large segment is several */
    u64 bytes;
    u64 now_ns;       /* CLOCK_MONOTONIC, to a tick's resolution */
    u64 hash;         /* of the flow, keyed */
    u64 selections;   /* that it is in: select.h */
    u64 timestamp_us; /* of a switch's record; this and all below: 0 for a packet */
    u32 queue_depth;
    u16 ingress_port;
    u16 ip_id;
    u32 applications; /* bit n: application n is to have it */
    u32 unused;
};

/* The monitor's parsed packet, for the applications on the same CPU. */
struct selection {
    u32 pending; /* applications that remain to be called */
    u32 current; /* the running one */
    u32 count;   /* of packets */
    u32 unused;
    struct selected packets[RECORDS];
};

BPF_PERCPU_ARRAY(selections, struct selection, 1);
BPF_PROG_ARRAY(applications, APPLICATIONS);
BPF_PERCPU_ARRAY(given, u64, APPLICATIONS);

static __always_inline struct selection *selection_of_cpu(void) {
    u32 zero = 0;
    return selections.lookup(&zero);
}

/* Call the next application; returns if there is none. */
static __always_inline void call_next(CONTEXT *ctx, struct selection *selection) {
    u32 pending = selection->pending;
    if (!pending)
        return;
    selection->pending = pending & (pending - 1);
    selection->current = lowest(pending);
    applications.call(ctx, selection->current);
}

/* Whether record `at` is one of those that the frame told of. */
static __always_inline bool has_record(struct selection *selection, u64 at) {
#if RECORDS > 1
    return at < RECORDS && opaque(at) < selection->count;
#else
    return !at && selection->count;
#endif
}

static __always_inline bool is_given(struct selection *selection, u32 at) {
#if RECORDS > 1
    return selection->packets[at].applications >> (selection->current & 31) & 1;
#else
    return true;
#endif
}

static __always_inline void count_given(struct selection *selection, u64 packets) {
    u32 current = selection->current;
    u64 *count = given.lookup(&current);
    if (count)
        *count += packets;
}

#define APPLICATION(name)                                                                          \
    static __always_inline void name##_takes(CONTEXT *ctx, struct selected *packet);               \
    int name(CONTEXT *ctx) {                                                                       \
        struct selection *selection = selection_of_cpu();                                          \
        if (!selection)                                                                            \
            return VERDICT_PASS;                                                                   \
        u64 count = 0;                                                                             \
        for (u64 at = 0; has_record(selection, at); at++) {                                        \
            if (!is_given(selection, at))                                                          \
                continue;                                                                          \
            count += selection->packets[at].packets;                                               \
            name##_takes(ctx, &selection->packets[at]);                                            \
        }                                                                                          \
        count_given(selection, count);                                                             \
        call_next(ctx, selection);                                                                 \
        return VERDICT_PASS;                                                                       \
    }                                                                                              \
    static __always_inline void name##_takes(CONTEXT *ctx, struct selected *packet)
