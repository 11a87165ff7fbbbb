/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Tables that both sides of path tracing share: traced destinations, and probes in flight.
 *
 * ALL_SLOTS is 1 for the compiler; user space makes TARGETS * SLOTS.
 *
 * TARGETS, SLOTS (a power of two, 65536 at most: a sequence number's width in a packet) and
 * LINK_ETHERNET come from probes/path/programs.py.
 */
#ifndef PATH_H
#define PATH_H

#include <uapi/linux/icmp.h>
#include <uapi/linux/icmpv6.h>
#include <uapi/linux/udp.h>
#include "packet.h"

#define HOPS 32
#define FLOWS 4 /* of one destination, unless all are traced */

/* An IPv6 address; IPv4 as IPv4-mapped (RFC 4291), which no packet on the wire has. */
struct address {
    u64 word[2];
};

/* Why a packet to a destination cannot become a probe. The order of Unprobed in traced.py. */
enum unprobed {
    UNPROBED_FRAGMENT,
    UNPROBED_OPTIONS,   /* of IPv4 */
    UNPROBED_EXTENSION, /* headers of IPv6 */
    UNPROBED_PROTOCOL,  /* neither TCP nor UDP nor ICMP */
    UNPROBED_ICMP,      /* no echo request */
    UNPROBED_OPENING,   /* TCP's SYN, FIN and RST: a probe would change the connection */
    UNPROBED_SHORT,     /* no whole transport header */
    UNPROBED_REASONS = 8,
};

/* A destination. User space writes the first two cache lines, the kernel all others. */
struct target {
    u64 interval_ns; /* between two probes */
    u64 credit_ns;   /* made up for at most after a pause: (burst - 1) intervals */
    u64 only[FLOWS]; /* protocol << 32 | ports of flows to be traced; the first 0: every flow */
    u32 live;        /* hops to be probed in turn: bit n is TTL n */
    u32 asked;       /* a bit that differs from `done` asks for one probe of that hop */
    u32 ready;       /* 0: not in use */
    u32 whole;       /* hops whose TCP and ICMP probes are valid packets of their flow */

    u64 own; /* the flow that the tracer sends, as in `only`; ports of ICMP: the identifier */
    u64 unused[7];

    u64 next_ns;  /* when the next probe is due: the theoretical arrival time of GCRA (I.371) */
    u64 sequence; /* of the next probe */
    u64 packets;
    u64 matched;
    u64 unmatched; /* ICMP errors about this destination without a probe */
    u32 round;     /* hops still to be probed in this round */
    u32 done;
    u32 ttl;      /* of the destination's last packet */
    u32 remarked; /* probes dropped because another program had changed the clone's mark */
    u32 escaped;  /* clones that another program took; after the first one, next_ns is NEVER */
    u32 mtu;      /* of the last report that a packet was too big */

    u64 sent_bytes;    /* of probes that left, from the IP header on */
    u64 matched_bytes; /* of their answers */
    u64 heard_ns;      /* about the last packet from the destination */
    u64 foreign;       /* probes of other tracers */
    u64 foreign_ns;    /* the last of them */
    u64 mtu_ns;
    u64 mtu_reporter[2]; /* as in a slot */

    u64 unprobed[UNPROBED_REASONS]; /* packets, when a probe was due */

    u64 sent[HOPS]; /* by hop, including probes that this host dropped */
};

#define NEVER (~0ULL)

/* States of a slot, in the lowest byte of `state`; the upper bytes are the sequence number. */
enum slot_state {
    SLOT_WRITING,
    SLOT_SENT,
    SLOT_DROPPED,
    SLOT_ANSWERING,
    SLOT_ANSWERED,
    SLOT_SKIPPED, /* no probe has this number */
};
#define STATE_BITS 8

#define EXTENSION_SIZE 32

/* A probe: one cache line for the sent packet, one for the answer. */
struct slot {
    u64 state;
    u64 sent_ns;
    u64 source[2]; /* as in a flow_key: network order, IPv4 in the first four bytes */
    u32 ports;     /* as on the wire; for an echo its identifier and sequence number */
    u32 word;      /* TCP's sequence number; UDP's length */
    u32 packet_bytes;
    u16 length; /* of the IPv4 packet, or of the IPv6 payload; network order */
    u8 hop;
    u8 protocol;
    u8 tos;
    u8 whole;            /* 1: a valid packet of its flow, 0: guarded */
    u16 checksum;        /* of the transport header, as on the wire */
    u32 acknowledgement; /* TCP's */
    u16 partial;         /* the checksum that a virtual interface leaves: the pseudo header's */
    u16 unused[3];

    u64 received_ns;
    u64 responder[2];
    u8 ttl;
    u8 icmp_type;
    u8 icmp_code;
    u8 quoted_ttl;
    u8 quoted_tos;
    u8 extension_size;
    u16 altered;                  /* bits of Altered in records.py */
    u8 extension[EXTENSION_SIZE]; /* RFC 4884, as received */
};

#define WATCHED_WORDS 64

/* State that both directions read for each packet. */
struct shared {
    u64 clones; /* in flight on all CPUs: if 0, no packet is a clone */
    u64 unused[7];
    u64 watched[WATCHED_WORDS]; /* a Bloom filter of the keys of `addresses`, with one hash */
};

BPF_TABLE("hash", struct address, u32, addresses, ALL_TARGETS);
BPF_F_TABLE("array", u32, struct shared, shared, 1, BPF_F_MMAPABLE);
BPF_PERCPU_ARRAY(senders, u64, 1); /* the task that sends a clone on this CPU; see egress.c */
BPF_F_TABLE("array", u32, struct target, targets, ALL_TARGETS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct slot, slots, ALL_SLOTS, BPF_F_MMAPABLE);

/*
 * Set a slot's state. User space reads the state before and after the other fields, so a store must
 * not move across this one: on arm64 that takes the exchange, which is a full barrier.
 */
static __always_inline void publish(struct slot *slot, u64 state) {
    __sync_lock_test_and_set(&slot->state, state);
}

/* Limit a hop to below HOPS for the verifier; LLVM would optimise a plain mask away. */
static __always_inline u64 bounded(u64 hop) {
    asm volatile("%0 &= 31" : "+r"(hop));
    return hop;
}

static __always_inline struct address mapped(u32 ipv4) {
    return (struct address){{0, (u64)ipv4 << 32 | 0xffff0000}};
}

static __always_inline struct shared *shared_state(void) {
    u32 zero = 0;
    return shared.lookup(&zero);
}

/*
 * Whether `addresses` may contain an address: spares other packets the hash table's look-up.
 * TracedDestinations of probes/path/targets.py sets the bits.
 */
static __always_inline bool may_be_traced(struct shared *shared, struct address *address) {
    u64 hash = (address->word[0] ^ address->word[1]) * 0x9e3779b97f4a7c15;
    return shared->watched[hash >> 58] >> (hash >> 52 & 63) & 1;
}

static __always_inline struct target *target_of(u32 index) {
    struct target *target = targets.lookup(&index);
    return target && target->ready ? target : 0;
}

/* The target with this address, and its index; 0 if the address is not traced. */
static __always_inline struct target *target_at(struct shared *shared, struct address *address,
                                                u32 *index) {
    u32 *found = may_be_traced(shared, address) ? addresses.lookup(address) : 0;
    if (!found)
        return 0;
    *index = *found;
    return target_of(*index);
}

/* Whether a flow is traced: `flow` is as in `only` of a target. */
static __always_inline bool is_chosen(struct target *target, u64 flow) {
    if (!target->only[0])
        return true;
#pragma unroll
    for (int i = 0; i < FLOWS; i++)
        if (target->only[i] == flow)
            return true;
    return false;
}

static __always_inline struct slot *slot_of(u32 target, u64 sequence) {
    u32 at = target * CONSTANT(SLOTS) + (sequence & (CONSTANT(SLOTS) - 1));
    return slots.lookup(&at);
}

#endif
