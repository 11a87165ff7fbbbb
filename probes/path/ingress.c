/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Finds the routers' answers to probes, and keeps them from the host unless PASS_ANSWERS (S3.16).
 * Packets from a traced destination tell that it lives, and its distance
 * (S3.8). Other packets stay untouched.
 *
 * Answers are no traffic of the host: no other probe of this hook gets them, nor answers to the
 * probes of other tracers.
 */
#include "match.h"
#include "round_trip_in.h"

#define DELIVER 0
#define ARRIVE 1
BPF_PROG_ARRAY(steps, 2);

/* Bytes that hold every header, and an ICMP error up to the end of its extension. */
#define ANSWER_BYTES 2304
/* No verdict yet: the deciding bytes may not be linear. */
#define NOT_ALL_AT_HAND 100

#define HEARD_NS 50000000 /* between two writes of `heard_ns`: readers on other CPUs pay for it */

/* A packet of a traced destination, for the step ARRIVE on the same CPU. */
struct heard {
    u32 target;
    u32 l3; /* offset of the IP header */
    u32 ipv4;
};

BPF_PERCPU_ARRAY(heards, struct heard, 1);

static __always_inline struct heard *heard_of_cpu(void) {
    u32 zero = 0;
    return heards.lookup(&zero);
}

/* Store when a packet came from a traced destination, and its distance. Returns whether it did. */
static __always_inline bool learn(struct shared *shared, struct address *from, u32 ttl, u32 l3,
                                  bool ipv4) {
    u32 index = 0;
    struct target *target = target_at(shared, from, &index);
    if (!target)
        return false;
    if (target->ttl != ttl)
        target->ttl = ttl;
    u64 now = bpf_ktime_get_coarse_ns();
    if (now > target->heard_ns + HEARD_NS)
        target->heard_ns = now;
    struct heard *heard = heard_of_cpu();
    if (!heard)
        return false;
    *heard = (struct heard){index, l3, ipv4};
    return true;
}

/* Store the size that a router's link takes: a packet to a traced destination was larger. */
static __always_inline void learn_mtu(struct shared *shared, struct answer *answer) {
    u32 index;
    struct target *target = target_at(shared, &answer->to, &index);
    if (!target)
        return;
    target->mtu_reporter[0] = answer->responder[0];
    target->mtu_reporter[1] = answer->responder[1];
    target->mtu = answer->mtu;
    target->mtu_ns = answer->now;
}

/* The verdict on a message. Answers that the host gets pass all other probes of this hook. */
static __always_inline int verdict_on(CONTEXT *ctx, enum owner owner, bool drop) {
    if (owner == OF_HOST)
        return VERDICT_PASS;
    if (owner == OF_PROBE && drop)
        return VERDICT_DROP;
    steps.call(ctx, DELIVER);
    return VERDICT_PASS;
}

/* The meaning of an ICMP message. */
enum meaning {
    OTHER,
    NOT_READ, /* its bytes may not be linear */
    EXCEEDED, /* the hop limit, in transit */
    UNREACHABLE,
    TOO_BIG, /* this is about a packet's size, and so never about a probe */
    REPLY,
};

/*
 * Read a message of IPv4 into `answer`. An echo reply's probe went to its sender, and `to` is that
 * already. If not `whole`, only headers are sure to be linear.
 */
static __always_inline enum meaning read4(struct iphdr *ip, bool whole, struct answer *answer) {
    u32 header_length = ip->ihl * 4;
    struct icmp *icmp = (void *)ip + header_length;
    if ((void *)(icmp + 1) > answer->end)
        return NOT_READ;
    enum meaning meaning = UNREACHABLE;
    if (icmp->type == ICMP_TIME_EXCEEDED && icmp->code == ICMP_EXC_TTL)
        meaning = EXCEEDED;
    else if (icmp->type == ICMP_ECHOREPLY)
        meaning = REPLY;
    else if (icmp->type != ICMP_DEST_UNREACH)
        return OTHER;
    else if (icmp->code == ICMP_FRAG_NEEDED)
        meaning = TOO_BIG;
    if (!whole)
        return NOT_READ;
    answer->icmp = icmp;
    answer->bytes = bpf_ntohs(ip->tot_len);
    answer->ttl = ip->ttl;
    answer->responder[0] = ip->saddr;
    if (meaning == REPLY)
        return REPLY;

    struct iphdr *quote = (void *)(icmp + 1);
    if ((void *)(quote + 1) > answer->end || quote->version != 4 || quote->ihl != 5)
        return OTHER;
    answer->to = mapped(quote->daddr);
    answer->source[0] = quote->saddr;
    answer->transport = quote + 1;
    answer->quote_length = icmp->quoted_words * 4;
    answer->length = answer->bytes - header_length - sizeof(*icmp);
    answer->mtu = bpf_ntohs(icmp->unused);
    answer->identification = bpf_ntohs(quote->id);
    answer->packet_length = quote->tot_len;
    answer->protocol = quote->protocol;
    answer->quoted_ttl = quote->ttl;
    answer->quoted_tos = quote->tos;
    return meaning;
}

/* The same for IPv6. */
static __always_inline enum meaning read6(struct ipv6hdr *ip, bool whole, struct answer *answer) {
    struct icmp *icmp = (void *)(ip + 1);
    if ((void *)(icmp + 1) > answer->end)
        return NOT_READ;
    enum meaning meaning = UNREACHABLE;
    if (icmp->type == ICMPV6_TIME_EXCEED && icmp->code == ICMPV6_EXC_HOPLIMIT)
        meaning = EXCEEDED;
    else if (icmp->type == ICMPV6_ECHO_REPLY)
        meaning = REPLY;
    else if (icmp->type == ICMPV6_PKT_TOOBIG)
        meaning = TOO_BIG;
    else if (icmp->type != ICMPV6_DEST_UNREACH)
        return OTHER;
    if (!whole)
        return NOT_READ;
    u32 payload = bpf_ntohs(ip->payload_len);
    answer->icmp = icmp;
    answer->bytes = sizeof(*ip) + payload;
    answer->ttl = ip->hop_limit;
    answer->responder[0] = answer->to.word[0];
    answer->responder[1] = answer->to.word[1];
    if (meaning == REPLY)
        return REPLY;

    struct ipv6hdr *quote = (void *)(icmp + 1);
    if ((void *)(quote + 1) > answer->end || quote->version != 6)
        return OTHER;
    struct address source = *(struct address *)&quote->saddr;
    answer->to = *(struct address *)&quote->daddr;
    answer->source[0] = source.word[0];
    answer->source[1] = source.word[1];
    answer->transport = quote + 1;
    answer->quote_length = icmp->quoted_words_v6 * 8;
    answer->length = payload - sizeof(*icmp);
    answer->mtu = bpf_ntohl(*(__be32 *)&icmp->quoted_words_v6);
    answer->packet_length = quote->payload_len;
    answer->protocol = quote->nexthdr;
    answer->quoted_ttl = quote->hop_limit;
    answer->quoted_tos = quote->priority << 4 | quote->flow_lbl[0] >> 4;
    return meaning;
}

/* Take an ICMP message from `from`, whose IP header is at `c`. */
static __always_inline int take_message(CONTEXT *ctx, struct shared *shared, struct cursor *c,
                                        struct address *from, bool ipv4, bool whole) {
    struct answer answer = {.to = *from, .end = c->end, .version = ipv4 ? 4 : 6};
    enum meaning meaning = ipv4 ? read4(c->at, whole, &answer) : read6(c->at, whole, &answer);
    if (meaning == NOT_READ)
        return NOT_ALL_AT_HAND;
    if (meaning == OTHER)
        return VERDICT_PASS;
    answer.now = bpf_ktime_get_ns();
    if (meaning == REPLY)
        return verdict_on(ctx, take_reply(shared, &answer), true);
    if (meaning == TOO_BIG) {
        learn_mtu(shared, &answer);
        return VERDICT_PASS;
    }
    return verdict_on(ctx, take_error(shared, &answer),
                      meaning == EXCEEDED && !CONSTANT(PASS_ANSWERS));
}

static __always_inline int take_packet(CONTEXT *ctx, struct shared *shared, u32 *heard) {
    void *data = (void *)(long)ctx->data;
    struct cursor c = {data, (void *)(long)ctx->data_end};
#ifdef HOOK_XDP
    bool whole = true;
#else
    bool whole = c.end - data >= min(ctx->len, (u32)ANSWER_BYTES);
#endif
    __be16 type;
    if (!skip_link(&c, &type))
        return NOT_ALL_AT_HAND;
    bool ipv4 = type == bpf_htons(ETH_P_IP);
    struct address from;
    u32 ttl;
    bool message;
    if (ipv4) {
        struct iphdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return NOT_ALL_AT_HAND;
        from = mapped(ip->saddr);
        ttl = ip->ttl;
        message = ip->protocol == IPPROTO_ICMP && !(ip->frag_off & bpf_htons(IPV4_FRAGMENT));
    } else if (type == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = c.at;
        if ((void *)(ip + 1) > c.end)
            return NOT_ALL_AT_HAND;
        from = *(struct address *)&ip->saddr;
        ttl = ip->hop_limit;
        message = ip->nexthdr == IPPROTO_ICMPV6;
    } else {
        return VERDICT_PASS;
    }
    /* Without forget, the verifier would follow both cases through the rest of the program. */
    *heard = forget(learn(shared, &from, ttl, c.at - data, ipv4));
    return message ? take_message(ctx, shared, &c, &from, ipv4, whole) : VERDICT_PASS;
}

int path(CONTEXT *ctx) {
    struct shared *shared = shared_state();
    if (!shared)
        return VERDICT_PASS;
    u32 heard = 0;
#ifdef HOOK_XDP
    int verdict = take_packet(ctx, shared, &heard);
#else
    int verdict;
#pragma nounroll
    for (int attempt = 0; attempt < 2; attempt++) {
        verdict = take_packet(ctx, shared, &heard);
        if (verdict != NOT_ALL_AT_HAND || bpf_skb_pull_data(ctx, min(ctx->len, (u32)ANSWER_BYTES)))
            break;
    }
#endif
    if (verdict == VERDICT_DROP)
        return VERDICT_DROP;
    if (heard)
        steps.call(ctx, ARRIVE);
    return VERDICT_PASS;
}

/* Whether a packet of a traced destination answers the flow that the tracer sends there. */
static __always_inline bool answers_own(CONTEXT *ctx, struct heard *heard) {
    struct target *target = target_of(heard->target);
    struct passage passage = {};
    u16 ports[2];
    if (!target || !target->own || !read_ip(ctx, heard->l3, heard->ipv4, false, &passage) ||
        target->own >> 32 != passage.protocol || !read(ctx, passage.at, ports, sizeof(ports)))
        return false;
    return (u32)target->own == (ports[1] | (u32)ports[0] << 16);
}

/* Take a packet of a traced destination, which may answer a timed packet. */
int arrive(CONTEXT *ctx) {
    struct heard *heard = heard_of_cpu();
    if (!heard)
        return VERDICT_PASS;
    if (answers_own(ctx, heard))
        steps.call(ctx, DELIVER);
    take_answer(ctx, heard->target, heard->l3, heard->ipv4);
    return VERDICT_PASS;
}

/* Pass a packet to the host: loaded without a next probe. */
int deliver(CONTEXT *ctx) {
    return VERDICT_PASS;
}
