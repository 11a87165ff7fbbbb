/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The health of TCP conversations: round-trip times of both halves of the path, and losses, of
 * packets that pass here. docs/monitor.md defines the counts; they follow Wireshark's
 * tcp.analysis as far as a few words of state can.
 *
 * Each end has a `struct sender`: what was seen of its bytes, and one segment whose ACK is awaited.
 * So a half's round-trip time is the time from a segment to the ACK of its last byte. A repeat of
 * these bytes cancels the sample (Karn), and no sample begins while bytes are missing. An end that
 * only sends ACKs has samples by timestamps (RFC 7323): from an ACK to the first data that echoes
 * it, if the other end has data in flight all the while.
 *
 * `conversations` belongs to the programs of both directions. The one that selects packets adds
 * conversations; the other one looks them up. Both programs may see the packets of one end (lo, or
 * a router with one network): then the program that saw the first packet counts. User space removes
 * conversations that are idle or have ended. The counts of a window are in `flows`, a row for each
 * end. Each end's packets alone write its row.
 *
 * CONVERSATIONS and FLOWS, the most entries, and EXACT_CLOCK come from the configuration. If
 * EXACT_CLOCK is 0, the monitor's tick is the clock.
 */
#pragma once

#include "address.h"
#include "kernel.h"
#include "packet.h"
#include "tcp_flags.h"

#define REORDERED_NS 3000000 /* if the round-trip time is unknown; Wireshark's value */
#define STAMPS 0x0a080101    /* NOP, NOP, timestamps of 10 bytes (RFC 7323, appendix A) */
#define STAMPED_SIZE 32      /* TCP header with these options */
#define MAX_HEADER_AT 0x7ff
#define IPV6_SIZE 40

#if EXACT_CLOCK
#define NOW(tick_ns) bpf_ktime_get_ns()
#else
#define NOW(tick_ns) (tick_ns)
#endif

enum hook_side { INCOMING = 1, OUTGOING };

/* States of a sender. */
#define KNOWN 1  /* a packet came: `next` is valid */
#define PROBED 2 /* its last packet was a keep-alive, or probed a zero window */
#define FINISHED 4

struct flow {
    u64 source[2];
    u64 destination[2];
    u32 source_port;
    u32 destination_port;
};

/* The bytes of one end. Sequence numbers are of its bytes, but `acked`. */
struct sender {
    u64 sent_ns;    /* when the awaited segment passed; 0: none is awaited */
    u64 stamped_ns; /* when the awaited timestamp passed; 0: none is awaited */
    u64 hole_ns;    /* when the hole was found */
    u32 next;       /* behind the highest byte seen */
    u32 awaited;    /* the ACK of this byte ends the sample */
    u32 hole;       /* first byte that is missing, and the end of the last one; equal: none */
    u32 hole_end;
    u32 stamp;    /* awaited timestamp, or the last one */
    u32 acked;    /* its last ACK, a number of the other end's bytes */
    u32 repeats;  /* of this ACK */
    u32 window;   /* its last window, unscaled */
    u32 least_us; /* shortest round-trip time to this end; 0: unknown */
    u16 side;     /* the program that counts its packets; 0: unknown */
    u16 states;
};

struct conversation {
    struct sender senders[2]; /* the lower end of the key, the upper end */
    u64 last;                 /* CLOCK_MONOTONIC, to a tick's resolution; ENDED */
};

#define ENDED 1 /* as a time: the next sweep removes it */

/* Counts of one end's packets. */
struct counts {
    u64 packets;
    u64 bytes;
    u64 segments; /* packets with data, SYN or FIN */
    u64 retransmitted;
    u64 lost_before; /* of these: fill a hole that was seen here */
    u64 spurious;    /* of these: were acknowledged already */
    u64 out_of_order;
    u64 holes;
    u64 duplicate_acks;
    u64 zero_windows;
    u64 resets;
    u64 rtt_samples; /* between here and the source */
    u64 rtt_sum;     /* nanoseconds */
    u64 rtt_least;
    u64 rtt_most;
};

BPF_HASH(conversations, struct flow, struct conversation, CONVERSATIONS);
BPF_HASH(flows, struct flow, struct counts, FLOWS);
BPF_ARRAY(blank, struct conversation, 1); /* zeros: the stack has no room for them */
BPF_PERCPU_ARRAY(full_at, u64, 1); /* when a table was last full, on this CPU: see half_open.c */

/* The parts of a TCP header, and the size of the segment. */
struct segment {
    u32 sequence;
    u32 ack;
    u32 window;
    u32 size; /* of data, with SYN and FIN */
    u32 stamp;
    u32 echo;
    u64 flags;
    bool has_stamps;
};

_Static_assert(sizeof(struct counts) <= sizeof(struct conversation), "`blank` serves both");

static __always_inline bool is_after(u32 a, u32 b) {
    return (s32)(a - b) > 0;
}

/* Whether the source comes after the destination, in any fixed order. */
static __always_inline bool is_greater(struct flow *flow) {
    if (flow->source[1] != flow->destination[1])
        return flow->source[1] > flow->destination[1];
    if (flow->source[0] != flow->destination[0])
        return flow->source[0] > flow->destination[0];
    return flow->source_port > flow->destination_port;
}

/* Read a packet's TCP header. Returns false for other packets, and for fragments. */
static __always_inline bool read_segment(CONTEXT *ctx, struct packet *packet,
                                         struct segment *segment) {
    if (PROTOCOL(&packet->key) != IPPROTO_TCP || packet->fragment)
        return false;
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    u64 network_at = packet->network_at & MAX_HEADER_AT;
    u64 transport_at = packet->transport_at & MAX_HEADER_AT;
    u8 *ip = data + network_at;
    if ((void *)(ip + 8) > end)
        return false;
    bool is_v4 = VERSION(&packet->key) == 4;
    u64 total = is_v4 ? bpf_ntohs(*(u16 *)(ip + 2)) : bpf_ntohs(*(u16 *)(ip + 4));
    /* 0: a larger segment than the field can tell. */
#ifdef HOOK_XDP
    u64 frame = end - data;
#else
    u64 frame = ctx->len;
#endif
    if (!total)
        total = frame - network_at;
    else if (!is_v4)
        total += IPV6_SIZE;
    u8 *tcp = data + transport_at;
    if ((void *)(tcp + sizeof(struct tcphdr)) > end)
        return false;
    u32 header = (tcp[12] >> 4) * 4;
    s64 size = (s64)total - (s64)(transport_at - network_at) - header;
    if (size < 0)
        return false;
    segment->sequence = bpf_ntohl(*(__be32 *)(tcp + 4));
    segment->ack = bpf_ntohl(*(__be32 *)(tcp + 8));
    segment->flags = tcp[13];
    segment->window = bpf_ntohs(*(__be16 *)(tcp + 14));
    segment->size = size + (tcp[13] >> 1 & 1) + (tcp[13] & TCP_FIN);
    segment->has_stamps = false;
    if (header >= STAMPED_SIZE && (void *)(tcp + STAMPED_SIZE) <= end &&
        *(u32 *)(tcp + 20) == STAMPS) {
        segment->has_stamps = true;
        segment->stamp = bpf_ntohl(*(__be32 *)(tcp + 24));
        segment->echo = bpf_ntohl(*(__be32 *)(tcp + 28));
    }
    return true;
}

static __always_inline void add_rtt(struct sender *from, struct counts *counts, u64 ns) {
    counts->rtt_samples++;
    counts->rtt_sum += ns;
    if (!counts->rtt_least || ns < counts->rtt_least)
        counts->rtt_least = ns;
    if (ns > counts->rtt_most)
        counts->rtt_most = ns;
    u32 us = ns / 1000 + 1;
    if (!from->least_us || us < from->least_us)
        from->least_us = us;
}

/* End samples of the other end's segments, or of its ACKs. */
static __always_inline void answer(struct sender *from, struct sender *to, struct segment *segment,
                                   struct counts *counts, u64 tick_ns) {
    if (to->sent_ns && segment->flags & TCP_ACK && !is_after(to->awaited, segment->ack)) {
        add_rtt(from, counts, NOW(tick_ns) - to->sent_ns);
        to->sent_ns = 0;
    }
    if (!to->stamped_ns || !segment->has_stamps || !segment->size)
        return;
    /* If nothing was in flight, this data waited for its application. */
    bool waited = to->acked == from->next || is_after(from->next, segment->sequence);
    if (segment->echo == to->stamp && !waited)
        add_rtt(from, counts, NOW(tick_ns) - to->stamped_ns);
    if (waited || !is_after(to->stamp, segment->echo))
        to->stamped_ns = 0;
}

/* Count a packet's ACK and window. */
static __always_inline void acknowledge(struct sender *from, struct sender *to,
                                        struct segment *segment, struct counts *counts,
                                        u64 tick_ns) {
    bool control = segment->flags & TCP_CONTROL;
    if (!segment->window && !control)
        counts->zero_windows++;
    if (segment->flags & TCP_RST)
        counts->resets++;
    if (!(segment->flags & TCP_ACK))
        return;
    if (segment->ack != from->acked) {
        from->repeats = 0;
        from->acked = segment->ack;
    } else if (!segment->size && !control && segment->window && segment->window == from->window &&
               segment->sequence == from->next && from->states & KNOWN && !(to->states & PROBED)) {
        from->repeats++;
        counts->duplicate_acks++;
    }
    if (!segment->size && segment->has_stamps && !from->stamped_ns &&
        segment->stamp != from->stamp && is_after(to->next, segment->ack)) {
        from->stamp = segment->stamp;
        from->stamped_ns = NOW(tick_ns);
    }
}

static __always_inline bool has_hole(struct sender *from, struct sender *to) {
    return from->hole != from->hole_end && is_after(from->hole_end, to->acked);
}

/* Count `packets` with bytes that came before, or that a hole lacks. */
static __always_inline void repeat(struct sender *from, struct sender *to, struct segment *segment,
                                   struct counts *counts, u64 packets, u64 tick_ns) {
    u32 end = segment->sequence + segment->size;
    if (from->sent_ns && is_after(from->awaited, segment->sequence))
        from->sent_ns = 0;
    bool is_acked = to->states & KNOWN && !is_after(end, to->acked);
    bool fills = !is_acked && from->hole != from->hole_end &&
                 !is_after(from->hole, segment->sequence) && !is_after(end, from->hole_end);
    if (fills) {
        /* A repeat takes a round trip at least, and one may be shorter than those seen. */
        u64 least_us = (u64)from->least_us + to->least_us;
        u64 most = least_us ? least_us * 750 : REORDERED_NS;
        if (segment->sequence == from->hole)
            from->hole = end;
        else if (end == from->hole_end)
            from->hole_end = segment->sequence;
        bool is_fast = to->repeats >= 2 && to->acked == segment->sequence;
        if (!is_fast && NOW(tick_ns) - from->hole_ns < most) {
            counts->out_of_order += packets;
            return;
        }
        counts->lost_before += packets;
    }
    counts->retransmitted += packets;
    if (is_acked)
        counts->spurious += packets;
}

static __always_inline void forget_past(struct sender *sender) {
    sender->sent_ns = sender->stamped_ns = 0;
    sender->hole = sender->hole_end = 0;
    sender->states = 0;
}

/* Count a packet's bytes: new ones, a hole before them, or repeats. */
static __always_inline void transmit(struct sender *from, struct sender *to,
                                     struct segment *segment, struct counts *counts, u64 packets,
                                     u64 tick_ns) {
    u32 size = segment->size, end = segment->sequence + size;
    bool control = segment->flags & TCP_CONTROL;
    if (segment->flags & TCP_RST)
        return;
    if (size)
        counts->segments += packets;
    if (segment->flags & TCP_SYN && !(segment->flags & TCP_ACK) && end != from->next) {
        forget_past(from); /* another connection on the same ports */
        forget_past(to);
    }
    bool is_probe =
        !control && size <= 1 && from->states & KNOWN &&
        (segment->sequence == from->next - 1 ||
         (size && segment->sequence == from->next && to->states & KNOWN && !to->window));
    if (is_probe) {
        from->states |= PROBED;
        return;
    }
    from->states &= ~PROBED;
    if (!(from->states & KNOWN)) {
        from->states |= KNOWN;
    } else if (is_after(segment->sequence, from->next)) {
        counts->holes++;
        if (!has_hole(from, to)) {
            from->hole = from->next;
            from->hole_ns = NOW(tick_ns);
        }
        from->hole_end = segment->sequence;
    } else if (!is_after(end, from->next)) {
        if (size)
            repeat(from, to, segment, counts, packets, tick_ns);
        return;
    } else if (segment->sequence != from->next) {
        /* A large segment may be new in part. */
        u32 old = from->next - segment->sequence;
        repeat(from, to, segment, counts, (old * packets + size - 1) / size, tick_ns);
    }
    from->next = end;
    if (size && !from->sent_ns && !has_hole(from, to)) {
        from->awaited = end;
        from->sent_ns = NOW(tick_ns);
    }
    if (segment->flags & TCP_FIN)
        from->states |= FINISHED;
}

/*
 * Count a packet of a conversation. An INCOMING packet adds its conversation if it is new. Returns
 * false if a table had no room.
 */
static __always_inline bool follow(CONTEXT *ctx, struct packet *packet, u64 packets, u64 bytes,
                                   u64 tick_ns, u32 side) {
    struct segment segment = {};
    struct flow_key *key = &packet->key;
    u32 zero = 0;
    struct conversation *zeros = blank.lookup(&zero);
    u64 *full = full_at.lookup(&zero);
    if (!zeros || !full || !read_segment(ctx, packet, &segment))
        return true;

    struct flow flow = {};
    write_address(flow.source, key->source, VERSION(key));
    write_address(flow.destination, key->destination, VERSION(key));
    flow.source_port = bpf_ntohs(SOURCE_PORT(key));
    flow.destination_port = bpf_ntohs(DESTINATION_PORT(key));
    struct flow both = flow;
    bool is_upper = is_greater(&flow);
    if (is_upper) {
        both.source[0] = flow.destination[0];
        both.source[1] = flow.destination[1];
        both.destination[0] = flow.source[0];
        both.destination[1] = flow.source[1];
        both.source_port = flow.destination_port;
        both.destination_port = flow.source_port;
    }
    struct conversation *known = conversations.lookup(&both);
    if (!known) {
        if (side == OUTGOING)
            return true;
        if (*full != tick_ns)
            conversations.insert(&both, zeros);
        known = conversations.lookup(&both);
        if (!known) {
            *full = tick_ns;
            return false;
        }
    }
    struct sender *from = is_upper ? &known->senders[1] : &known->senders[0];
    struct sender *to = is_upper ? &known->senders[0] : &known->senders[1];
    if (!from->side)
        from->side = side;
    if (from->side != side)
        return true;
    struct counts *counts = flows.lookup(&flow);
    if (!counts) {
        if (*full != tick_ns)
            flows.insert(&flow, (struct counts *)zeros);
        counts = flows.lookup(&flow);
        if (!counts) {
            *full = tick_ns;
            return false;
        }
    }
    counts->packets += packets;
    counts->bytes += bytes;
    answer(from, to, &segment, counts, tick_ns);
    acknowledge(from, to, &segment, counts, tick_ns);
    transmit(from, to, &segment, counts, packets, tick_ns);
    from->window = segment.window;
    bool is_over = segment.flags & TCP_RST || from->states & to->states & FINISHED;
    known->last = is_over ? ENDED : tick_ns;
    return true;
}
