/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A probe while it is made: from the packet that causes it to its slot. */
#ifndef SCRATCH_H
#define SCRATCH_H

#include "mark.h"
#include "path.h"

#define TRANSPORT_SIZE 20 /* the most that a probe has behind its IP header */
#define NUMBERS 4         /* tried at most for one probe */

/* State that one step passes to the next on the same CPU: no other packet comes in between. */
struct scratch {
    u32 target;
    u32 l3; /* offset of the IP header */
    u32 mark;
    u32 sending; /* a clone that this generation of `path` has not seen yet */
    u64 control; /* the packet's control block where a clone has TRACERS */
    u64 now;     /* arrival of the application's packet */
    u64 sequence;
    u32 hop;
    u32 packet_bytes;
    u8 ip[40];
    u8 transport[TRANSPORT_SIZE];
    u32 protocol;
    u16 whole;
    u16 checksum; /* of the finished probe */
    u32 sender;   /* enum sender */
    /* Marks of the last probe of another tracer: one packet may cause a probe of each. */
    u16 foreign_identification;
    u16 foreign_urgent;
};

BPF_PERCPU_ARRAY(scratches, struct scratch, 1);

static __always_inline struct scratch *scratch_of_cpu(void) {
    u32 zero = 0;
    return scratches.lookup(&zero);
}

/*
 * Take the number of the next probe. Skip numbers whose marks tell nothing: TCP's urgent pointer 0,
 * and the marks of another tracer's probe by the same packet.
 */
static __always_inline u64 take_number(struct target *target, struct scratch *scratch) {
    u64 sequence;
#pragma nounroll
    for (int i = 0; i < NUMBERS; i++) {
        sequence = __sync_fetch_and_add(&target->sequence, 1);
        u16 low = sequence;
        if (low && low != scratch->foreign_urgent &&
            identification_of(low) != scratch->foreign_identification)
            break;
        struct slot *slot = slot_of(scratch->target, sequence);
        if (slot)
            publish(slot, sequence << STATE_BITS | SLOT_SKIPPED);
    }
    return sequence;
}

static __always_inline u32 checksum_at(u32 protocol) {
    return protocol == IPPROTO_TCP ? 16 : protocol == IPPROTO_UDP ? 6 : 2;
}

/* Store the probe in `scratch` in its slot. */
static __always_inline void keep(struct scratch *scratch, u64 state) {
    struct slot *slot = slot_of(scratch->target, scratch->sequence);
    if (!slot)
        return;
    u32 first = *(u32 *)scratch->transport, second = *(u32 *)(scratch->transport + 4);
    u32 protocol = scratch->protocol;
    u8 *ip = scratch->ip;
    publish(slot, SLOT_WRITING);
    if (ip[0] >> 4 == 4) {
        slot->source[0] = *(u32 *)(ip + 12);
        slot->source[1] = 0;
        slot->length = *(u16 *)(ip + 2);
        slot->tos = ip[1];
    } else {
        slot->source[0] = *(u64 *)(ip + 8);
        slot->source[1] = *(u64 *)(ip + 16);
        slot->length = *(u16 *)(ip + 4);
        slot->tos = ip[0] << 4 | ip[1] >> 4;
    }
    slot->ports = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP ? first : second;
    slot->word = protocol == IPPROTO_TCP ? second : second & 0xffff;
    slot->packet_bytes = scratch->packet_bytes;
    slot->hop = scratch->hop;
    slot->protocol = protocol;
    slot->whole = scratch->whole;
    slot->checksum = scratch->checksum;
    slot->partial = *(u16 *)(scratch->transport + checksum_at(protocol));
    slot->acknowledgement = *(u32 *)(scratch->transport + 8);
    slot->sent_ns = bpf_ktime_get_ns();
    publish(slot, scratch->sequence << STATE_BITS | state);
}

#endif
