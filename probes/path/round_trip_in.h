/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Takes the answers to timed packets: see round_trip.h. */
#ifndef ROUND_TRIP_IN_H
#define ROUND_TRIP_IN_H

#include "round_trip.h"

/* Take a time into account; returns the least one of the last half minute or minute. */
static __always_inline u64 least(struct exchange *exchange, u64 rtt, u64 now) {
    if (now - exchange->least_since_ns > LEAST_NS) {
        exchange->least_before_ns = exchange->least_ns;
        exchange->least_ns = NEVER;
        exchange->least_since_ns = now;
    }
    if (rtt < exchange->least_ns)
        exchange->least_ns = rtt;
    return min(exchange->least_ns, exchange->least_before_ns);
}

/* Write the sample of an answer that came to the packet timed at `sent_ns`. */
static __always_inline void arrived(struct exchange *exchange, u32 place, struct passage *passage,
                                    u64 sent_ns, u32 kind, u32 clock) {
    struct sample sample = sample_of(exchange, place, sent_ns);
    if (!claim(exchange, sent_ns))
        return;
    sample.kind = kind;
    sample.remote_clock = clock;
    sample.ttl = passage->ttl;
    if (kind == SAMPLE_TIMED)
        sample.received_ns = passage->now;
    write_sample(&sample);
}

/* The kind of an answer that its sender may have held back unless it is `prompt`. */
static __always_inline u32 kind_of(struct exchange *exchange, u64 sent_ns, u64 now, bool prompt) {
    u64 rtt = now - sent_ns, base = least(exchange, rtt, now);
    return prompt || rtt <= base + NEAR_NS + (base >> NEAR_SHIFT) ? SAMPLE_TIMED : SAMPLE_UNTIMED;
}

/* Whether an acknowledgement tells that data had arrived twice (RFC 2883). */
static __always_inline bool tells_duplicate(CONTEXT *ctx, struct segment *segment) {
    __be32 edge;
    u32 at = option_at(ctx, segment, OPTION_SACK);
    return at && read(ctx, at, &edge, sizeof(edge)) &&
           after(segment->acknowledged, bpf_ntohl(edge));
}

/*
 * Whether the retransmission was needed: not if the answer is older (by its timestamp, or because
 * no answer is that fast: RFC 3522), or if the destination had the data twice.
 */
static __always_inline bool was_lost(CONTEXT *ctx, struct exchange *exchange,
                                     struct segment *segment, u64 now) {
    if (segment->has_clock && after(exchange->again_clock, segment->echo))
        return false;
    u64 base = min(exchange->least_ns, exchange->least_before_ns);
    if (base != NEVER && now - exchange->again_ns < base / 2)
        return false;
    return !tells_duplicate(ctx, segment);
}

static __always_inline void arrive_tcp(CONTEXT *ctx, struct passage *passage) {
    struct segment segment;
    u32 place;
    if (!read_segment(ctx, passage, &segment))
        return;
    set_flow(passage, segment.ports >> 16 | segment.ports << 16);
    struct exchange *exchange = exchange_of(passage, &place);
    u64 sent_ns = exchange ? *(volatile u64 *)&exchange->sent_ns : 0;
    if (!sent_ns)
        return;
    if (segment.flags & TCP_RST) {
        claim(exchange, sent_ns);
        return;
    }
    if (!(segment.flags & TCP_ACK))
        return;
    u64 now = bpf_ktime_get_ns();
    u32 method = exchange->method, expected = exchange->expected;
    u32 clock = segment.has_clock ? segment.clock : 0;
    passage->now = now;
    if (method == METHOD_TIMESTAMP) {
        if (!segment.size || !segment.has_clock)
            return;
        u64 heard_ns = exchange->heard_ns;
        exchange->heard_ns = now;
        if (after(expected, segment.echo))
            return;
        /* A destination that sends all the time sends the echo at once. */
        bool prompt = now - heard_ns <= now - sent_ns >> GAP_SHIFT;
        if (segment.echo == expected && kind_of(exchange, sent_ns, now, prompt) == SAMPLE_TIMED)
            arrived(exchange, place, passage, sent_ns, SAMPLE_TIMED, clock);
        else
            claim(exchange, sent_ns); /* no answer is due to an acknowledgement */
        return;
    }
    if (after(expected, segment.acknowledged) || after(segment.acknowledged, exchange->next))
        return;
    u32 kind;
    if (exchange->again_ns) {
        kind = was_lost(ctx, exchange, &segment, now) ? SAMPLE_LOST : SAMPLE_UNTIMED;
    } else if (exchange->held) {
        kind = SAMPLE_UNTIMED;
    } else {
        u32 most = exchange->mss > LEAST_MSS ? exchange->mss : LEAST_MSS;
        bool prompt = method == METHOD_HANDSHAKE || exchange->burst_end - exchange->start > most ||
                      (!segment.size && now - sent_ns < PROMPT_NS);
        kind = kind_of(exchange, sent_ns, now, prompt);
    }
    arrived(exchange, place, passage, sent_ns, kind, clock);
}

static __always_inline void arrive_dns(struct passage *passage, u8 *payload) {
    u32 place;
    struct exchange *exchange = exchange_of(passage, &place);
    u64 sent_ns = exchange ? *(volatile u64 *)&exchange->sent_ns : 0;
    if (!sent_ns || exchange->ports != passage->ports || !(payload[2] & DNS_RESPONSE) ||
        exchange->expected != dns_number(payload))
        return;
    passage->now = bpf_ktime_get_ns();
    u32 kind = kind_of(exchange, sent_ns, passage->now, false);
    arrived(exchange, place, passage, sent_ns, kind, 0);
}

/*
 * A server's spin bit is that of the client's latest packet. It counts only if the packets before
 * it were a long run, because random bits have none, and if the server did not pause.
 */
static __always_inline void arrive_quic(struct passage *passage, u8 first) {
    u32 place;
    if ((first & QUIC_LONG) != QUIC_SHORT)
        return;
    struct exchange *exchange = exchange_of(passage, &place);
    if (!exchange)
        return;
    u64 now = bpf_ktime_get_ns(), heard_ns = exchange->heard_ns;
    u64 sent_ns = *(volatile u64 *)&exchange->sent_ns;
    u32 bit = !!(first & QUIC_SPIN);
    exchange->heard_ns = now;
    if (bit == exchange->spin_in) {
        exchange->run++;
        return;
    }
    bool regular = sent_ns && exchange->expected == bit && exchange->run >= STEADY_RUN;
    exchange->spin_in = bit;
    exchange->run = 1;
    if (!regular) {
        exchange->steady = 0;
        return;
    }
    passage->now = now;
    exchange->steady++;
    if (exchange->steady > STEADY_EDGES && now - heard_ns <= now - sent_ns >> GAP_SHIFT)
        arrived(exchange, place, passage, sent_ns, SAMPLE_TIMED, 0);
    else
        claim(exchange, sent_ns);
}

static __always_inline void arrive_echo(CONTEXT *ctx, struct passage *passage, u8 reply) {
    struct echo echo;
    u32 place;
    if (!read(ctx, passage->at, &echo, sizeof(echo)) || echo.type != reply)
        return;
    set_echo_flow(passage, &echo);
    struct exchange *exchange = exchange_of(passage, &place);
    u64 sent_ns = exchange ? *(volatile u64 *)&exchange->sent_ns : 0;
    /* A probe has the numbers of the application's request. */
    if (!sent_ns || exchange->expected != echo.number || is_marked_echo(ctx, passage))
        return;
    passage->now = bpf_ktime_get_ns();
    arrived(exchange, place, passage, sent_ns, SAMPLE_TIMED, 0);
}

/* Take a packet of a target, which may be an answer. */
static __always_inline void arrive(CONTEXT *ctx, u32 index, u32 l3, bool ipv4) {
    struct passage passage = {.target = index};
    if (!read_ip(ctx, l3, ipv4, false, &passage))
        return;
    u8 protocol = passage.protocol;
    if (protocol == IPPROTO_TCP) {
        arrive_tcp(ctx, &passage);
    } else if (protocol == IPPROTO_UDP) {
        struct udp_start udp;
        if (!read(ctx, passage.at, &udp, sizeof(udp)))
            return;
        set_flow(&passage, udp.ports >> 16 | udp.ports << 16);
        if ((udp.ports & 0xffff) == bpf_htons(PORT_DNS))
            arrive_dns(&passage, udp.payload);
        else
            arrive_quic(&passage, udp.payload[0]);
    } else if (protocol == (ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
        arrive_echo(ctx, &passage, ipv4 ? ICMP_ECHOREPLY : ICMPV6_ECHO_REPLY);
    }
}

#endif
