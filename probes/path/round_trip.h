/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Round trips of the flow itself: packets to a traced destination are timed until it answers.
 *
 * Each flow has one timed packet in flight at most. Its exchange has the expected answer; the
 * ingress hook takes it from there and writes a sample, which user space reads. No lock is held
 * across hooks: `sent_ns` tells whether a packet is timed, and only the CPU that sets it to 0 may
 * write its sample. So CPUs that meet can lose a sample, but never make one up.
 *
 * A receiver may hold its answer back: TCP delays an acknowledgement by 40 ms or more unless it has
 * received more than a full segment and its window stays open, and a server may think before it
 * answers. The time of such an answer counts only if it is near the least time of the flow in the
 * last minute, or if the answer left before the next segment arrived. Otherwise the sample says
 * that the packet was answered, and no time.
 *
 * TARGETS, ALL_EXCHANGES (1 for the compiler; user space makes TARGETS * EXCHANGES) and the expiry
 * come from probes/path/programs.py.
 */
#ifndef ROUND_TRIP_H
#define ROUND_TRIP_H

#include "mark.h"
#include "path.h"
#include "tcp_flags.h"

#define EXCHANGES 128 /* of a target */
#define SAMPLES 8192  /* in the ring */
#define PACE_NS 10000000
#define IDLE_NS 1000000000 /* another flow may take the exchange of a flow without packets */
#define LEAST_NS 30000000000
#define NEAR_NS 500000     /* an answer is near the least time if it is later by this much */
#define NEAR_SHIFT 5       /* and a thirty-second of the least time */
#define PROMPT_NS 20000000 /* no known TCP delays an acknowledgement by less */
#define BURST_NS 200000    /* segments that leave within this time arrive together */
#define LEAST_MSS 536      /* RFC 9293; Linux takes no sender's segments to be smaller */
#define STEADY_RUN 8       /* packets between two edges of a spin bit */
#define STEADY_EDGES 2     /* regular edges before the first that counts */
#define FOLLOW_SHIFT 3
#define GAP_SHIFT 5 /* a thirty-second of the time is no pause */

#define ECHO_EXCHANGES 8

#define PORT_DNS 53
#define PORT_QUIC 443

/* Same numbers as MeasuredBy in probes/path/records.py. */
enum method {
    METHOD_HANDSHAKE = 1,
    METHOD_ACK,
    METHOD_TIMESTAMP,
    METHOD_ECHO,
    METHOD_DNS,
    METHOD_SPIN,
};

enum sample_kind {
    SAMPLE_TIMED,
    SAMPLE_UNTIMED, /* answered, but the time may include more than the path */
    SAMPLE_LOST,
};

/* A flow, and its timed packet. */
struct exchange {
    u64 flow; /* protocol << 32 | ports as sent; of an echo, its identifier is the first port */
    u64 source[2];
    u64 sent_ns;     /* of the timed packet; 0: none is in flight */
    u64 again_ns;    /* when the timed packet was retransmitted; 0: never */
    u32 again_clock; /* TCP timestamp of the retransmission */
    u32 expected;    /* the answer's acknowledgement, timestamp, number or bit */
    u32 ports;       /* of the timed packet: DNS queries of all ports share an exchange */
    u32 bytes;       /* of the timed packet, before segmentation */
    u32 start;       /* sequence number of the timed segment */
    u32 burst_end;   /* end of the segments that left together with it */
    u8 method;
    u8 tos;
    u8 held;   /* an earlier segment may be lost: the answer waits for its retransmission */
    u8 known;  /* whether `next` and `clock` are */
    u32 next;  /* end of all segments so far: those before it are retransmissions */
    u32 clock; /* newest TCP timestamp */
    u32 mss;   /* largest segment */

    u64 follow_ns; /* when the next data was sent; 0: not yet */
    u32 follow_end;
    u16 window; /* the destination's last one, not scaled */
    u16 widest; /* its largest one */
    u64 busy;   /* a CPU is changing the flow or its timed packet */
    u64 seen_ns;
    u64 due_ns;          /* earlier packets are not timed */
    u64 heard_ns;        /* last packet that might have been an answer */
    u64 least_ns;        /* least time since `least_since_ns` */
    u64 least_before_ns; /* in the half minute before that */
    u64 least_since_ns;
    u32 run;     /* packets of the destination with the same spin bit */
    u8 steady;   /* successive regular edges */
    u8 spin_in;  /* last bit received; 2: none yet */
    u8 spin_out; /* last bit sent; 2: none yet */
    u8 unused_too;
};

struct sample {
    u64 number; /* of the sample, from 1; 0: it is being written */
    u64 sent_ns;
    u64 received_ns; /* 0 without a time */
    u64 source[2];
    u32 ports;
    u32 remote_clock;
    u32 bytes;
    u32 place; /* of the exchange in its table: target * EXCHANGES + number */
    u8 kind;
    u8 protocol;
    u8 method;
    u8 tos;
    u8 ttl;
    u8 unused[3];
};

BPF_F_TABLE("array", u32, struct exchange, exchanges, ALL_EXCHANGES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct sample, samples, SAMPLES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, sampled, 1, BPF_F_MMAPABLE); /* number of the next sample */

/* A packet to a target or from it. Its flow is as this host sends it. */
struct passage {
    u64 flow;
    u64 source[2]; /* this host's address */
    u64 now;
    u32 ports;
    u32 target;
    u32 at;     /* offset of the transport header */
    u32 length; /* from there to the packet's end */
    u32 bytes;  /* of the packet */
    u8 protocol;
    u8 tos;
    u8 ttl;
};

/* A UDP header and the begin of its payload: DNS' number and flags, or QUIC's, and its version. */
struct udp_start {
    __be32 ports;
    u16 length;
    u16 check;
    u8 payload[5];
};

#define DNS_RESPONSE 0x80
#define QUIC_LONG 0xc0 /* RFC 9000, section 17.2: header form and fixed bit */
#define QUIC_SHORT 0x40
#define QUIC_SPIN 0x20
#define QUIC_V1 1
#define QUIC_V2 0x6b3343cf /* RFC 9369 */

static __always_inline u32 dns_number(u8 *payload) {
    return payload[0] << 8 | payload[1];
}

struct echo {
    u8 type;
    u8 code;
    u16 check;
    u16 identifier;
    __be16 number;
};

/* The fixed TCP header and the usual place of its timestamps (RFC 7323, appendix A). */
struct tcp_start {
    __be32 ports;
    __be32 sequence;
    __be32 acknowledged;
    u8 length; /* in words, shifted by 4 */
    u8 flags;
    u16 window;
    u16 check;
    u16 urgent;
    __be32 padded; /* TIMESTAMP_PADDED */
    __be32 clock;
    __be32 echo;
};
#define TIMESTAMP_PADDED 0x0101080a /* two NOPs, kind and length */
#define OPTION_SACK 5
#define OPTION_TIMESTAMP 8
#define MOST_OPTIONS 40

struct segment {
    u32 ports; /* as on the wire */
    u32 sequence;
    u32 acknowledged;
    u32 clock;
    u32 echo;
    u32 options; /* offset */
    u32 payload; /* offset */
    u32 size;    /* of the payload */
    u16 window;  /* not scaled */
    u8 flags;
    bool has_clock;
};

/* DNS queries of all ports are one flow here. */
static __always_inline void set_flow(struct passage *passage, u32 ports) {
    u32 of_flow = ports;
    if (passage->protocol == IPPROTO_UDP && ports >> 16 == bpf_htons(PORT_DNS))
        of_flow = ports & 0xffff0000;
    passage->ports = ports;
    passage->flow = (u64)passage->protocol << 32 | of_flow;
}

/* Pings come seldom, and one without an answer is in flight for long: each flow has several. */
static __always_inline void set_echo_flow(struct passage *passage, struct echo *echo) {
    u32 number = bpf_ntohs(echo->number) & (ECHO_EXCHANGES - 1);
    passage->ports = echo->identifier;
    passage->flow = (u64)passage->protocol << 32 | number << 16 | echo->identifier;
}

static __always_inline bool after(u32 this, u32 that) {
    return (s32)(this - that) > 0;
}

/* Copy `size` bytes of the packet, a constant. */
static __always_inline bool read(CONTEXT *ctx, u64 offset, void *to, u64 size) {
#ifdef HOOK_XDP
    asm volatile("%0 &= 0xfff" : "+r"(offset));
    void *data = (void *)(long)ctx->data, *from = data + offset;
    if (from + size > (void *)(long)ctx->data_end)
        return false;
    __builtin_memcpy(to, from, size);
    return true;
#else
    return !bpf_skb_load_bytes(ctx, offset, to, size);
#endif
}

/* Whether an echo carries the mark of a tracer's request. */
static __always_inline bool is_marked_echo(CONTEXT *ctx, struct passage *passage) {
    __be32 magic;
    return read(ctx, passage->at + sizeof(struct echo), &magic, sizeof(magic)) &&
           magic == bpf_htonl(MAGIC);
}

/* Read the IP header at `l3`; `out`: this host sends the packet. */
static __always_inline bool read_ip(CONTEXT *ctx, u32 l3, bool ipv4, bool out,
                                    struct passage *passage) {
    u32 whole, header;
    if (ipv4) {
        struct iphdr ip;
        if (!read(ctx, l3, &ip, sizeof(ip)) || ip.ihl < 5 || ip.frag_off & bpf_htons(IPV4_FRAGMENT))
            return false;
        header = ip.ihl * 4;
        whole = bpf_ntohs(ip.tot_len);
        passage->source[0] = out ? ip.saddr : ip.daddr;
        passage->source[1] = 0;
        passage->protocol = ip.protocol;
        passage->tos = ip.tos;
        passage->ttl = ip.ttl;
    } else {
        struct ipv6hdr ip;
        if (!read(ctx, l3, &ip, sizeof(ip)))
            return false;
        u64 *address = (u64 *)(out ? &ip.saddr : &ip.daddr);
        header = sizeof(ip);
        whole = sizeof(ip) + bpf_ntohs(ip.payload_len);
        passage->source[0] = address[0];
        passage->source[1] = address[1];
        passage->protocol = ip.nexthdr;
        passage->tos = ip.priority << 4 | ip.flow_lbl[0] >> 4;
        passage->ttl = ip.hop_limit;
    }
#ifndef HOOK_XDP
    if (ctx->gso_size) /* may be longer than its header can say */
        whole = ctx->len - l3;
#endif
    passage->at = l3 + header;
    passage->bytes = whole;
    passage->length = whole - header;
    return whole >= header;
}

/* The offset of a TCP option's values; 0 if the header lacks the option. */
static __always_inline u32 option_at(CONTEXT *ctx, struct segment *segment, u8 kind) {
    u32 at = segment->options, end = segment->payload;
#pragma nounroll
    for (int i = 0; i < MOST_OPTIONS; i++) {
        u8 option[2];
        at = forget(at);
        if (at + sizeof(option) > end || !read(ctx, at, option, sizeof(option)) || !option[0])
            return 0;
        if (option[0] == 1) { /* a NOP */
            at++;
            continue;
        }
        if (option[1] < sizeof(option) || at + option[1] > end)
            return 0;
        if (option[0] == kind)
            return option[1] >= sizeof(option) + 8 ? at + sizeof(option) : 0;
        at += option[1];
    }
    return 0;
}

/* Read a TCP header. */
static __always_inline bool read_segment(CONTEXT *ctx, struct passage *passage,
                                         struct segment *segment) {
    struct tcp_start tcp = {};
    if (!read(ctx, passage->at, &tcp, sizeof(tcp)) && !read(ctx, passage->at, &tcp, 20))
        return false;
    u32 header = tcp.length >> 4 << 2;
    if (header < 20 || header > passage->length)
        return false;
    segment->ports = tcp.ports;
    segment->sequence = bpf_ntohl(tcp.sequence);
    segment->acknowledged = bpf_ntohl(tcp.acknowledged);
    segment->flags = tcp.flags;
    segment->window = bpf_ntohs(tcp.window);
    segment->options = passage->at + 20;
    segment->payload = passage->at + header;
    segment->size = passage->length - header;
    segment->has_clock = header >= 32 && tcp.padded == bpf_htonl(TIMESTAMP_PADDED);
    if (!segment->has_clock && header > 20) {
        u32 at = option_at(ctx, segment, OPTION_TIMESTAMP);
        segment->has_clock = at && read(ctx, at, &tcp.clock, 8);
    }
    segment->clock = bpf_ntohl(tcp.clock);
    segment->echo = bpf_ntohl(tcp.echo);
    return true;
}

static __always_inline bool is_of(struct exchange *exchange, struct passage *passage) {
    return exchange->flow == passage->flow && exchange->source[0] == passage->source[0] &&
           exchange->source[1] == passage->source[1];
}

/* The first of the two places that the flow may have; the other one differs in the lowest bit. */
static __always_inline u32 place_of(struct passage *passage) {
    return passage->target * EXCHANGES + (passage->flow * 0x9e3779b97f4a7c15 >> 57);
}

/* The flow's exchange, and its place; NULL if the flow has no exchange. */
static __always_inline struct exchange *exchange_of(struct passage *passage, u32 *place) {
    *place = place_of(passage);
    struct exchange *exchange = exchanges.lookup(place);
    if (exchange && is_of(exchange, passage))
        return exchange;
    *place ^= 1;
    exchange = exchanges.lookup(place);
    return exchange && is_of(exchange, passage) ? exchange : 0;
}

/* Take the timed packet out of its exchange: whether it was still there. */
static __always_inline bool claim(struct exchange *exchange, u64 sent_ns) {
    return __sync_val_compare_and_swap(&exchange->sent_ns, sent_ns, 0) == sent_ns;
}

/* Whether a timed packet without an answer was lost, or its answer. Others need no answer. */
static __always_inline bool is_lossy(struct exchange *exchange) {
    u32 method = exchange->method;
    return method == METHOD_ECHO || method == METHOD_DNS || method == METHOD_HANDSHAKE ||
           (method == METHOD_ACK && exchange->again_ns);
}

/* Write the next sample of the ring. */
static __always_inline void write_sample(struct sample *made) {
    u32 zero = 0;
    u64 *head = sampled.lookup(&zero);
    if (!head)
        return;
    u64 number = __sync_fetch_and_add(head, 1);
    u32 at = number & (SAMPLES - 1);
    struct sample *sample = samples.lookup(&at);
    if (!sample)
        return;
    __sync_lock_test_and_set(&sample->number, 0);
    *sample = *made;
    __sync_lock_test_and_set(&sample->number, number + 1);
}

/* The sample of the exchange's timed packet, still without the answer. */
static __always_inline struct sample sample_of(struct exchange *exchange, u32 place, u64 sent_ns) {
    return (struct sample){
        .sent_ns = sent_ns,
        .source = {exchange->source[0], exchange->source[1]},
        .ports = exchange->ports,
        .bytes = exchange->bytes,
        .place = place,
        .protocol = exchange->flow >> 32,
        .method = exchange->method,
        .tos = exchange->tos,
    };
}

#endif
