/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Times packets on their way out: see round_trip.h. */
#ifndef ROUND_TRIP_OUT_H
#define ROUND_TRIP_OUT_H

#include "round_trip.h"

/* Start to change an exchange. The CPU that does not get it leaves its packet untimed. */
static __always_inline bool take(struct exchange *exchange) {
    return !__sync_lock_test_and_set(&exchange->busy, 1);
}

static __always_inline void release(struct exchange *exchange) {
    __sync_lock_test_and_set(&exchange->busy, 0);
}

/* Whether an answer may still come to the timed packet. */
static __always_inline bool is_awaited(struct exchange *exchange, u64 now) {
    u64 sent_ns = exchange->sent_ns;
    return sent_ns && now - sent_ns < EXPIRY_NS;
}

/* Take the timed packet out without an answer. */
static __always_inline void give_up(struct exchange *exchange, u32 place) {
    u64 sent_ns = exchange->sent_ns;
    if (!sent_ns)
        return;
    struct sample sample = sample_of(exchange, place, sent_ns);
    sample.kind = SAMPLE_LOST;
    bool lost = is_lossy(exchange);
    if (claim(exchange, sent_ns) && lost)
        write_sample(&sample);
}

/* Whether another flow may have the exchange. */
static __always_inline bool is_free(struct exchange *exchange, u64 now) {
    if (now - exchange->seen_ns < IDLE_NS)
        return false;
    return !is_awaited(exchange, now) || !is_lossy(exchange);
}

/* The flow's exchange, and its place; a free one if it has none; NULL if there is none. */
static __always_inline struct exchange *acquire(struct passage *passage, u32 *place) {
    struct exchange *exchange = exchange_of(passage, place);
    if (!exchange) {
        u64 now = passage->now;
        exchange = exchanges.lookup(place);
        if (!exchange || !is_free(exchange, now)) {
            *place ^= 1;
            exchange = exchanges.lookup(place);
            if (!exchange || !is_free(exchange, now))
                return 0;
        }
        if (!take(exchange))
            return 0;
        give_up(exchange, *place);
        exchange->flow = passage->flow;
        exchange->source[0] = passage->source[0];
        exchange->source[1] = passage->source[1];
        exchange->due_ns = exchange->heard_ns = exchange->mss = exchange->known = 0;
        exchange->least_ns = exchange->least_before_ns = NEVER;
        exchange->least_since_ns = now;
        exchange->spin_in = exchange->spin_out = 2;
        exchange->run = exchange->steady = 0;
        release(exchange);
    }
    exchange->seen_ns = passage->now;
    return exchange;
}

/* Time a packet. */
static __always_inline void time_packet(struct exchange *exchange, u32 place,
                                        struct passage *passage, u32 method, u32 expected,
                                        u32 start, u32 end) {
    if (!take(exchange))
        return;
    give_up(exchange, place);
    if (is_of(exchange, passage)) {
        exchange->expected = expected;
        exchange->ports = passage->ports;
        exchange->bytes = passage->bytes;
        exchange->method = method;
        exchange->tos = passage->tos;
        exchange->start = start;
        exchange->burst_end = end;
        exchange->held = 0;
        exchange->again_ns = 0;
        exchange->due_ns = passage->now + PACE_NS;
        __sync_lock_test_and_set(&exchange->sent_ns, passage->now);
    }
    release(exchange);
}

/* Take note of data that was sent before. */
static __always_inline void resend(struct exchange *exchange, struct segment *segment, u64 now) {
    u32 end = segment->sequence + segment->size;
    if (!exchange->sent_ns || exchange->method > METHOD_ACK)
        return;
    if (after(segment->sequence, exchange->start))
        return;
    if (!after(end, exchange->start) && segment->size) {
        exchange->held = 1;
    } else if (!exchange->again_ns) {
        exchange->again_clock = segment->clock;
        exchange->again_ns = now;
    }
}

static __always_inline void depart_tcp(CONTEXT *ctx, struct passage *passage,
                                       struct segment *segment) {
    u32 place;
    struct exchange *exchange = acquire(passage, &place);
    if (!exchange)
        return;
    u64 now = passage->now;
    u32 sequence = segment->sequence, flags = segment->flags;
    u32 end = sequence + segment->size + !!(flags & (TCP_SYN | TCP_FIN));
    if (flags & TCP_RST) {
        exchange->sent_ns = 0; /* no answer will come */
        return;
    }
    if (flags & TCP_SYN) {
        if (exchange->sent_ns && exchange->start == sequence) {
            segment->size = 1;
            resend(exchange, segment, now);
            return;
        }
        time_packet(exchange, place, passage, METHOD_HANDSHAKE, sequence + 1, sequence, end);
        exchange->next = end;
        exchange->clock = segment->clock;
        exchange->known = 1;
        return;
    }
    bool newer = segment->has_clock && after(segment->clock, exchange->clock);
    bool idle = !is_awaited(exchange, now) && now >= exchange->due_ns;
    if (!exchange->known) {
        exchange->next = end;
        exchange->known = 1;
        newer = segment->has_clock;
    } else if (after(exchange->next, sequence)) {
        if (end != sequence)
            resend(exchange, segment, now);
    } else if (segment->size) {
        u32 first = ctx->gso_size && ctx->gso_size < segment->size ? ctx->gso_size : segment->size;
        if (first > exchange->mss)
            exchange->mss = first;
        if (idle || (exchange->sent_ns && exchange->method == METHOD_TIMESTAMP))
            time_packet(exchange, place, passage, METHOD_ACK, sequence + first, sequence, end);
        else if (exchange->burst_end == sequence && now - exchange->sent_ns < BURST_NS)
            exchange->burst_end = end;
    } else if (newer && idle && !(flags & TCP_FIN)) {
        time_packet(exchange, place, passage, METHOD_TIMESTAMP, segment->clock, sequence, end);
    }
    if (after(end, exchange->next))
        exchange->next = end;
    if (newer)
        exchange->clock = segment->clock;
}

/* A query is timed if no other one is. */
static __always_inline void depart_dns(struct passage *passage, u8 *payload) {
    u32 place;
    if (payload[2] & DNS_RESPONSE)
        return;
    struct exchange *exchange = acquire(passage, &place);
    if (exchange && !is_awaited(exchange, passage->now) && passage->now >= exchange->due_ns)
        time_packet(exchange, place, passage, METHOD_DNS, dns_number(payload), 0, 0);
}

/*
 * A client sends the opposite of the spin bit that it received last, and a server the same (RFC
 * 9000, section 17.4). So a client's bit changes only after the server's has become equal to it.
 * Either side may also send random or constant bits.
 */
static __always_inline void depart_quic(struct passage *passage, u8 *payload) {
    u8 first = payload[0];
    u32 version = payload[1] << 24 | payload[2] << 16 | payload[3] << 8 | payload[4], place;
    bool starts = (first & QUIC_LONG) == QUIC_LONG && (version == QUIC_V1 || version == QUIC_V2);
    bool known = starts || passage->ports >> 16 == bpf_htons(PORT_QUIC);
    struct exchange *exchange = known ? acquire(passage, &place) : exchange_of(passage, &place);
    if (!exchange)
        return;
    exchange->seen_ns = passage->now;
    if ((first & QUIC_LONG) != QUIC_SHORT)
        return;
    u8 bit = !!(first & QUIC_SPIN), before = exchange->spin_out;
    exchange->spin_out = bit;
    if (before == bit)
        return;
    if (exchange->spin_in == before) {
        time_packet(exchange, place, passage, METHOD_SPIN, bit, 0, 0);
    } else {
        exchange->steady = 0;
        exchange->sent_ns = 0;
    }
}

static __always_inline void depart_echo(CONTEXT *ctx, struct passage *passage, u8 request) {
    struct echo echo;
    u32 place;
    if (!read(ctx, passage->at, &echo, sizeof(echo)) || echo.type != request ||
        is_marked_echo(ctx, passage))
        return;
    set_echo_flow(passage, &echo);
    struct exchange *exchange = acquire(passage, &place);
    if (!exchange || is_awaited(exchange, passage->now) || passage->now < exchange->due_ns)
        return;
    time_packet(exchange, place, passage, METHOD_ECHO, echo.number, 0, 0);
    exchange->due_ns += (ECHO_EXCHANGES - 1) * PACE_NS;
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

/* Time a packet to a target if the target will answer it. */
static __always_inline void depart(CONTEXT *ctx, struct target *target, u32 index, u32 l3,
                                   bool ipv4, u64 now) {
    struct passage passage = {.now = now, .target = index};
    if (!read_ip(ctx, l3, ipv4, true, &passage) || passage.ttl <= HOPS)
        return; /* the packets of a traceroute do not reach the target */
    u8 protocol = passage.protocol;
    u64 of_protocol = (u64)protocol << 32;
    if (protocol == IPPROTO_TCP) {
        struct segment segment;
        if (read_segment(ctx, &passage, &segment) &&
            is_chosen(target, of_protocol | segment.ports)) {
            set_flow(&passage, segment.ports);
            depart_tcp(ctx, &passage, &segment);
        }
    } else if (protocol == IPPROTO_UDP) {
        struct udp_start udp;
        if (!read(ctx, passage.at, &udp, sizeof(udp)) ||
            !is_chosen(target, of_protocol | udp.ports))
            return;
        set_flow(&passage, udp.ports);
        if (udp.ports >> 16 == bpf_htons(PORT_DNS))
            depart_dns(&passage, udp.payload);
        else
            depart_quic(&passage, udp.payload);
    } else if (protocol == (ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6) &&
               is_chosen(target, of_protocol)) {
        depart_echo(ctx, &passage, ipv4 ? ICMP_ECHO : ICMPV6_ECHO_REQUEST);
    }
}

#endif
