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
    return sent_ns && now - sent_ns < CONSTANT(EXPIRY_NS);
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

/* Give a free exchange to the packet's flow, and set its place; NULL if none is free. */
static __always_inline struct exchange *take_free(struct passage *passage, u32 *place) {
    u64 now = passage->now;
    struct exchange *exchange = exchanges.lookup(place);
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
    exchange->window = exchange->widest = 0;
    exchange->least_ns = exchange->least_before_ns = NEVER;
    exchange->least_since_ns = now;
    exchange->spin_in = exchange->spin_out = 2;
    exchange->run = exchange->steady = 0;
    release(exchange);
    return exchange;
}

/* How to time a packet. */
struct timing {
    u32 method; /* 0: nothing */
    u32 expected;
    u32 start;
    u32 end;
    u32 pace_ns;
};

static __always_inline void time_packet(struct exchange *exchange, u32 place,
                                        struct passage *passage, struct timing *timing) {
    if (!take(exchange))
        return;
    give_up(exchange, place);
    if (is_of(exchange, passage)) {
        exchange->expected = timing->expected;
        exchange->ports = passage->ports;
        exchange->bytes = passage->bytes;
        exchange->method = timing->method;
        exchange->tos = passage->tos;
        exchange->start = timing->start;
        exchange->burst_end = timing->end;
        exchange->held = 0;
        exchange->again_ns = 0;
        exchange->follow_ns = 0;
        exchange->due_ns = passage->now + timing->pace_ns;
        __sync_lock_test_and_set(&exchange->sent_ns, passage->now);
    }
    release(exchange);
}

/* Take note of data, or of a SYN, that was sent before and ends at `end`. */
static __always_inline void resend(struct exchange *exchange, struct segment *segment, u32 end,
                                   u64 now) {
    if (!exchange->sent_ns || exchange->method > METHOD_ACK ||
        after(segment->sequence, exchange->start))
        return;
    if (!after(end, exchange->start)) {
        exchange->held = 1;
    } else if (!exchange->again_ns) {
        exchange->again_clock = segment->clock;
        exchange->again_ns = now;
    }
}

static __always_inline void depart_tcp(CONTEXT *ctx, struct exchange *exchange,
                                       struct segment *segment, u64 now, struct timing *timing) {
    u32 sequence = segment->sequence, flags = segment->flags, next = exchange->next;
    u32 end = sequence + segment->size + !!(flags & (TCP_SYN | TCP_FIN));
    if (flags & TCP_RST) {
        exchange->sent_ns = 0; /* no answer will come */
        return;
    }
    bool due = !is_awaited(exchange, now) && now >= exchange->due_ns;
    bool newer = segment->has_clock && after(segment->clock, exchange->clock);
    timing->start = sequence;
    timing->end = end;
    if (flags & TCP_SYN) {
        if (exchange->sent_ns && exchange->start == sequence) {
            resend(exchange, segment, end, now);
            return;
        }
        timing->method = METHOD_HANDSHAKE;
        timing->expected = sequence + 1;
        newer = segment->has_clock;
        next = end;
    } else if (!exchange->known) {
        newer = segment->has_clock;
        next = end;
    } else if (after(next, sequence)) {
        if (end != sequence)
            resend(exchange, segment, end, now);
    } else if (segment->size) {
        u32 first = ctx->gso_size && ctx->gso_size < segment->size ? ctx->gso_size : segment->size;
        if (first > exchange->mss)
            exchange->mss = first;
        if (due || (exchange->sent_ns && exchange->method == METHOD_TIMESTAMP)) {
            timing->method = METHOD_ACK;
            timing->expected = sequence + first;
        } else {
            if (exchange->burst_end == sequence && now - exchange->sent_ns < BURST_NS)
                exchange->burst_end = end;
            if (!exchange->follow_ns) {
                exchange->follow_end = end;
                exchange->follow_ns = now;
            }
        }
    } else if (newer && due && !(flags & TCP_FIN)) {
        timing->method = METHOD_TIMESTAMP;
        timing->expected = segment->clock;
    }
    exchange->known = 1;
    exchange->next = after(end, next) ? end : next;
    if (newer)
        exchange->clock = segment->clock;
}

/*
 * A client sends the opposite of the spin bit that it received last, and a server the same (RFC
 * 9000, section 17.4). So a client's bit changes only after the server's has become equal to it.
 * Either side may also send random or constant bits.
 */
static __always_inline void depart_quic(struct exchange *exchange, u8 first,
                                        struct timing *timing) {
    if ((first & QUIC_LONG) != QUIC_SHORT)
        return;
    u8 bit = !!(first & QUIC_SPIN), before = exchange->spin_out;
    exchange->spin_out = bit;
    if (before == bit)
        return;
    if (exchange->spin_in == before) {
        timing->method = METHOD_SPIN;
        timing->expected = bit;
    } else {
        exchange->steady = 0;
        exchange->sent_ns = 0;
    }
}

static __always_inline bool opens_quic(u8 *payload) {
    u32 version = payload[1] << 24 | payload[2] << 16 | payload[3] << 8 | payload[4];
    return (payload[0] & QUIC_LONG) == QUIC_LONG && (version == QUIC_V1 || version == QUIC_V2);
}

/* Time a packet to a target if the target will answer it. */
static __always_inline void depart(CONTEXT *ctx, struct target *target, u32 index, u32 l3,
                                   bool ipv4, u64 now) {
    struct passage passage = {.now = now, .target = index};
    if (!read_ip(ctx, l3, ipv4, true, &passage) || passage.ttl <= HOPS)
        return; /* the packets of a traceroute do not reach the target */
    u8 protocol = passage.protocol;
    struct segment segment;
    struct udp_start udp;
    struct echo echo;
    u32 ports;
    bool dns = false, starts = true;
    if (protocol == IPPROTO_TCP) {
        if (!read_segment(ctx, &passage, &segment))
            return;
        set_flow(&passage, segment.ports);
        ports = segment.ports;
    } else if (protocol == IPPROTO_UDP) {
        if (!read(ctx, passage.at, &udp, sizeof(udp)))
            return;
        set_flow(&passage, udp.ports);
        ports = udp.ports;
        dns = ports >> 16 == bpf_htons(PORT_DNS);
        if (dns && udp.payload[2] & DNS_RESPONSE)
            return;
        starts = dns || ports >> 16 == bpf_htons(PORT_QUIC) || opens_quic(udp.payload);
    } else if (protocol == (ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
        if (!read(ctx, passage.at, &echo, sizeof(echo)) ||
            echo.type != (ipv4 ? ICMP_ECHO : ICMPV6_ECHO_REQUEST) || is_marked_echo(ctx, &passage))
            return;
        set_echo_flow(&passage, &echo);
        ports = 0;
    } else {
        return;
    }
    if (!is_chosen(target, (u64)protocol << 32 | ports))
        return;
    u32 place;
    struct exchange *exchange = exchange_of(&passage, &place);
    if (!exchange && starts)
        exchange = take_free(&passage, &place);
    if (!exchange)
        return;
    exchange->seen_ns = now;
    struct timing timing = {.pace_ns = PACE_NS};
    if (protocol == IPPROTO_TCP) {
        depart_tcp(ctx, exchange, &segment, now, &timing);
    } else if (protocol == IPPROTO_UDP && !dns) {
        depart_quic(exchange, udp.payload[0], &timing);
    } else if (!is_awaited(exchange, now) && now >= exchange->due_ns) {
        timing.method = dns ? METHOD_DNS : METHOD_ECHO;
        timing.expected = dns ? dns_number(udp.payload) : echo.number;
        if (!dns)
            timing.pace_ns = ECHO_EXCHANGES * PACE_NS;
    }
    if (timing.method)
        time_packet(exchange, place, &passage, &timing);
}

#endif
