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

/*
 * Take note of the destination's window. Returns whether the window is as wide as usual, and was so
 * before: a receiver that reads slowly acknowledges late, or when its process reads.
 */
static __always_inline bool is_wide(struct exchange *exchange, struct segment *segment) {
    u16 window = segment->window, before = exchange->window;
    if (segment->flags & TCP_SYN) /* has another scale */
        return true;
    if (!exchange->widest)
        before = window;
    exchange->window = window;
    if (window > exchange->widest)
        exchange->widest = window;
    u32 least = exchange->widest - exchange->widest / 4;
    return window >= least && before >= least;
}

/* These two are no kinds of samples. */
#define NO_ANSWER 16
#define WRONG_ANSWER 17 /* the right one will not come */

static __always_inline u32 arrive_tcp(CONTEXT *ctx, struct exchange *exchange,
                                      struct segment *segment, u64 sent_ns, u64 now) {
    u32 method = exchange->method, expected = exchange->expected;
    bool wide = is_wide(exchange, segment);
    if (!sent_ns)
        return NO_ANSWER;
    if (segment->flags & TCP_RST)
        return WRONG_ANSWER;
    if (!(segment->flags & TCP_ACK))
        return NO_ANSWER;
    if (method == METHOD_TIMESTAMP) {
        if (!segment->size || !segment->has_clock)
            return NO_ANSWER;
        u64 heard_ns = exchange->heard_ns;
        exchange->heard_ns = now;
        if (after(expected, segment->echo))
            return NO_ANSWER;
        /* A destination that sends all the time sends the echo at once. */
        bool prompt = now - heard_ns <= now - sent_ns >> GAP_SHIFT;
        if (segment->echo == expected && kind_of(exchange, sent_ns, now, prompt) == SAMPLE_TIMED)
            return SAMPLE_TIMED;
        return WRONG_ANSWER; /* nothing must answer an acknowledgement */
    }
    if (after(expected, segment->acknowledged) || after(segment->acknowledged, exchange->next))
        return NO_ANSWER;
    if (exchange->again_ns)
        return was_lost(ctx, exchange, segment, now) ? SAMPLE_LOST : SAMPLE_UNTIMED;
    if (exchange->held)
        return SAMPLE_UNTIMED;
    u64 rtt = now - sent_ns, follow_ns = exchange->follow_ns;
    u32 most = exchange->mss > LEAST_MSS ? exchange->mss : LEAST_MSS;
    bool prompt = method == METHOD_HANDSHAKE || exchange->burst_end - exchange->start > most ||
                  (!segment->size && rtt < PROMPT_NS);
    /* If the answer does not cover the next segment, it left before that arrived. */
    prompt |= follow_ns && after(exchange->follow_end, segment->acknowledged) &&
              follow_ns - sent_ns <= rtt >> FOLLOW_SHIFT;
    return kind_of(exchange, sent_ns, now, prompt && (wide || method == METHOD_HANDSHAKE));
}

/*
 * A server returns the spin bit of the client's latest packet. It counts only if the packets before
 * it were a long run, because random bits have none, and if the server did not pause.
 */
static __always_inline u32 arrive_quic(struct exchange *exchange, u8 first, u64 sent_ns, u64 now) {
    if ((first & QUIC_LONG) != QUIC_SHORT)
        return NO_ANSWER;
    u64 heard_ns = exchange->heard_ns;
    u32 bit = !!(first & QUIC_SPIN);
    exchange->heard_ns = now;
    if (bit == exchange->spin_in) {
        exchange->run++;
        return NO_ANSWER;
    }
    bool regular = sent_ns && exchange->expected == bit && exchange->run >= STEADY_RUN;
    exchange->spin_in = bit;
    exchange->run = 1;
    if (!regular) {
        exchange->steady = 0;
        return NO_ANSWER;
    }
    if (exchange->steady < STEADY_EDGES) {
        exchange->steady++;
        return WRONG_ANSWER;
    }
    return now - heard_ns <= now - sent_ns >> GAP_SHIFT ? SAMPLE_TIMED : WRONG_ANSWER;
}

/* Take a packet of a target, which may be an answer. */
static __always_inline void take_answer(CONTEXT *ctx, u32 index, u32 l3, bool ipv4) {
    struct passage passage = {.target = index};
    if (!read_ip(ctx, l3, ipv4, false, &passage))
        return;
    u8 protocol = passage.protocol;
    struct segment segment = {};
    struct udp_start udp;
    struct echo echo;
    bool dns = false, quic = false;
    if (protocol == IPPROTO_TCP) {
        if (!read_segment(ctx, &passage, &segment))
            return;
        set_flow(&passage, segment.ports >> 16 | segment.ports << 16);
    } else if (protocol == IPPROTO_UDP) {
        if (!read(ctx, passage.at, &udp, sizeof(udp)))
            return;
        set_flow(&passage, udp.ports >> 16 | udp.ports << 16);
        dns = (udp.ports & 0xffff) == bpf_htons(PORT_DNS);
        quic = !dns;
    } else if (protocol == (ipv4 ? IPPROTO_ICMP : IPPROTO_ICMPV6)) {
        if (!read(ctx, passage.at, &echo, sizeof(echo)) ||
            echo.type != (ipv4 ? ICMP_ECHOREPLY : ICMPV6_ECHO_REPLY))
            return;
        set_echo_flow(&passage, &echo);
    } else {
        return;
    }
    u32 place;
    struct exchange *exchange = exchange_of(&passage, &place);
    if (!exchange)
        return;
    u64 sent_ns = *(volatile u64 *)&exchange->sent_ns;
    if (!sent_ns && !quic && protocol != IPPROTO_TCP)
        return;
    u64 now = bpf_ktime_get_ns();
    /* Copied before the claim: afterwards another packet may be timed. */
    struct sample sample = sample_of(exchange, place, sent_ns);
    u32 kind = NO_ANSWER;
    if (protocol == IPPROTO_TCP) {
        kind = arrive_tcp(ctx, exchange, &segment, sent_ns, now);
    } else if (quic) {
        kind = arrive_quic(exchange, udp.payload[0], sent_ns, now);
    } else if (dns) {
        if (exchange->ports == passage.ports && udp.payload[2] & DNS_RESPONSE &&
            exchange->expected == dns_number(udp.payload))
            kind = SAMPLE_TIMED; /* with the server's time to think: no time of the path */
    } else if (exchange->expected == echo.number && !is_marked_echo(ctx, &passage)) {
        kind = SAMPLE_TIMED; /* a probe has the numbers of the application's request */
    }
    if (kind == NO_ANSWER || !claim(exchange, sent_ns) || kind == WRONG_ANSWER)
        return;
    sample.kind = kind;
    sample.ttl = passage.ttl;
    sample.remote_clock = segment.has_clock ? segment.clock : 0;
    sample.received_ns = kind == SAMPLE_TIMED ? now : 0;
    write_sample(&sample);
}

#endif
