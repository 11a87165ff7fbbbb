/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Digests of packets that two hosts choose alike (RFC 5475, hash-based selection): the keyed hash
 * of fields that no router changes chooses a packet, and names it.
 *
 * A large segment (TSO, GSO, GRO) is the packets that it is on the wire. Each has its own
 * digest, so both hosts have the same digests, wherever a kernel splits and joins packets.
 *
 * The hash has addresses, protocol, ports, and the length of the payload; further
 *   TCP        sequence and acknowledgement number, SYN, FIN, RST
 *   UDP        the first bytes of the payload
 *   others, and fragments: IP's identification and fragment offset, the first bytes of the payload
 * It has no TTL, type of service, flow label, VLAN, IP or TCP option, and no checksum. UDP and TCP
 * go without IP's identification: segmentation chooses it for all packets but the first.
 *
 * Packets of path tracing (path_mark.h) end at a router, or are hidden from this probe on the host
 * that sent them. Their bytes tell them, so both hosts leave them out.
 *
 * LIMIT, from probes/segment/probe.py, is the largest upper half of a chosen digest. HASH_0 ..
 * HASH_11 (odd secrets) come from there, too, and captured() is in a header that it writes.
 */
#include <uapi/linux/icmp.h>
#include <uapi/linux/icmpv6.h>
#include "packet.h"
#include "bits.h"
#include "hash.h"
#include "tracer.h"
#include "capture.h"
#include "path_mark.h"

#define ENTRIES 65536
#define MOST_PACKETS 192 /* of a large segment: 64 KB with an MSS of 342, 192 KB with 1024 */
#define HEAD_WORDS 4     /* of eight bytes, at the start of the payload */
#define HEAD (HEAD_WORDS * 8)

#define FIN 1
#define SYN_RST 6

struct digest {
    u64 digest;
    u64 time;  /* CLOCK_MONOTONIC */
    u32 bytes; /* of the IP packet */
    u32 flow;  /* a hash of the 5-tuple */
};

struct seen {
    u64 packets;
    u64 bytes;
};

BPF_QUEUE(digests, struct digest, ENTRIES);
BPF_PERCPU_ARRAY(seen, struct seen, 1); /* packets that pass the filter, chosen or not */

/*
 * The packets of one socket buffer, and the one at work. It is in a map because the verifier knows
 * nothing of the values there, and so follows each round of a loop once.
 */
struct unit {
    struct packet packet;
    u64 hash;       /* of the 5-tuple */
    u64 identity;   /* of the packet: TCP's numbers, or IP's identification */
    u64 flags;      /* of all packets */
    u64 last_flags; /* of the last packet */
    u64 headers;    /* bytes of IP and transport headers */
    u64 at;         /* offset of the packet's payload in the frame */
    u64 left;       /* bytes from there to the end */
    u64 step;       /* bytes of each packet's payload but the last */
    u64 is_tcp;     /* the numbers count; otherwise the first bytes of the payload */
    u64 full;       /* chosen packets without room */
    u64 full_bytes;
    u64 head[HEAD_WORDS];
    struct digest digest;
};

BPF_PERCPU_ARRAY(units, struct unit, 1);

/* Bytes of the transport header in which ports, lengths and checksums are. */
static __always_inline u64 skipped_header(u64 protocol) {
    switch (protocol) {
    case IPPROTO_TCP:
        return sizeof(struct tcphdr);
    case IPPROTO_SCTP:
        return 12;
    case IPPROTO_UDP:
    case IPPROTO_UDPLITE:
    case IPPROTO_DCCP:
        return 8;
    case IPPROTO_ICMP:
    case IPPROTO_ICMPV6:
        return 4;
    default:
        return 0;
    }
}

enum description {
    CUT_SHORT,
    OF_TRACING, /* path tracing sent the packet, or the reply to its packet */
    DESCRIBED,
};

/* Fill `unit`. */
static __always_inline enum description describe(CONTEXT *ctx, struct packet *packet,
                                                 struct unit *unit) {
    u64 version = VERSION(&packet->key), protocol = PROTOCOL(&packet->key);
    u64 at = packet->transport_at, end = ctx->len;
    u8 ip[8];
    u32 tcp[4], magic = 0;
    if (bpf_skb_load_bytes(ctx, packet->network_at, ip, sizeof(ip)))
        return CUT_SHORT;
    /* A short frame is padded, and the length of a large segment may not fit into the header. */
    if (!ctx->gso_size)
        end = packet->network_at +
              (version == 4 ? number_of(ip + 2) : number_of(ip + 4) + sizeof(struct ipv6hdr));
    unit->hash = hash_of(&packet->key);
    unit->identity = unit->flags = unit->last_flags = unit->is_tcp = 0;
    unit->full = unit->full_bytes = 0;
    if (packet->fragment) {
        if (!is_later_fragment(packet))
            at += skipped_header(protocol);
        else
            at += version == 4 ? (ip[0] & 15) * 4 : 8;
        unit->identity = packet->datagram << 16 | packet->fragment;
    } else if (protocol == IPPROTO_TCP) {
        if (bpf_skb_load_bytes(ctx, at + 4, tcp, sizeof(tcp)))
            return CUT_SHORT;
        unit->is_tcp = 1;
        unit->identity = (u64)bpf_ntohl(tcp[0]) << 32 | bpf_ntohl(tcp[1]);
        unit->flags = tcp[2] >> 8 & SYN_RST;
        unit->last_flags = tcp[2] >> 8 & FIN;
        at += (tcp[2] >> 4 & 15) * 4;
    } else {
        if (protocol == IPPROTO_UDP || protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6)
            bpf_skb_load_bytes(ctx, at + MAGIC_AT, &magic, sizeof(magic));
        if (magic == bpf_htonl(MAGIC))
            return OF_TRACING;
        at += skipped_header(protocol);
        if (protocol != IPPROTO_UDP && version == 4)
            unit->identity = packet->datagram << 16;
    }
    unit->at = at;
    unit->headers = at - packet->network_at;
    unit->left = end > at ? end - at : 0;
    unit->step = ctx->gso_size ? ctx->gso_size : unit->left;
    return unit->is_tcp && is_tcp_of_tracing(tcp + 2, unit->left) ? OF_TRACING : DESCRIBED;
}

/* The lesser of two sizes, without a branch: the verifier would follow both in each round. */
static __always_inline u64 lesser(u64 a, u64 b) {
    u64 difference = a - b;
    return b + (difference & (u64)((s64)difference >> 63));
}

/* The hash of the first bytes of a payload that is not empty. */
static __always_inline u64 hash_head(CONTEXT *ctx, struct unit *unit, u64 size) {
    u64 *head = unit->head;
    head[0] = head[1] = head[2] = head[3] = 0;
    size = opaque(lesser(size, HEAD) - 1) & (HEAD - 1); /* every verifier sees 1 .. HEAD */
    bpf_skb_load_bytes(ctx, unit->at, head, size + 1);
    /* Words are not folded: those of a repeated value would become zero. */
    return mix64(head[0] * CONSTANT(HASH_8) + head[1] * CONSTANT(HASH_9) +
                 head[2] * CONSTANT(HASH_10) + head[3] * CONSTANT(HASH_11));
}

/*
 * Record the packets of a socket buffer.
 *
 * The loop is a jump in assembler: LLVM orders the blocks of a loop in C such that the last one
 * falls into the first one without a jump, and verifiers such as that of 6.1 refuse that
 * ("back-edge").
 */
static __always_inline void record(CONTEXT *ctx, struct unit *unit) {
    u64 rounds = 0;
again:;
    u64 size = lesser(unit->left, unit->step), bytes = unit->headers + size;
    unit->left -= size;
    u64 flags = unit->flags | (unit->last_flags & (any_of(unit->left) - 1));
    u64 hash = unit->hash + fold64(unit->identity) * CONSTANT(HASH_6) +
               (flags << 32 | size) * CONSTANT(HASH_7);
    if (!unit->is_tcp && size)
        hash += hash_head(ctx, unit, size);
    hash = mix64(hash);
    if (hash >> 32 <= CONSTANT(LIMIT)) {
        unit->digest.digest = hash;
        unit->digest.time = bpf_ktime_get_ns();
        unit->digest.bytes = bytes;
        unit->digest.flow = unit->hash >> 32;
        u64 full = (u64)(s64)digests.push(&unit->digest, 0) >> 63; /* an error */
        unit->full += full;
        unit->full_bytes += bytes & -full;
    }
    unit->at += size;
    unit->identity += size << 32 & -unit->is_tcp; /* the sequence number */
    if (unit->left && ++rounds < MOST_PACKETS) {
        asm goto("goto %l0" : : : : again);
        __builtin_unreachable();
    }
    if (unit->left) {
        unit->full += (unit->left - 1) / unit->step + 1;
        unit->full_bytes += unit->left;
    }
    if (unit->full)
        lose(LOSS_TABLE_FULL, unit->full, unit->full_bytes);
}

/* Whether a router says that a TTL ended: on the host that traces, path tracing drops this answer.
 */
static __always_inline bool is_time_exceeded(struct flow_key *key) {
    u64 protocol = PROTOCOL(key), type_code = DESTINATION_PORT(key);
    return (protocol == IPPROTO_ICMP && type_code == (ICMP_TIME_EXCEEDED | ICMP_EXC_TTL << 8)) ||
           (protocol == IPPROTO_ICMPV6 &&
            type_code == (ICMPV6_TIME_EXCEED | ICMPV6_EXC_HOPLIMIT << 8));
}

static __always_inline void take(CONTEXT *ctx, struct unit *unit, struct wire_size *size) {
    u32 zero = 0;
    struct flow_key *key = &unit->packet.key;
    u64 protocol = PROTOCOL(key);
    struct seen *sum = seen.lookup(&zero);
    /* Headers of a tunnel's large segment change from packet to packet. */
    bool tunnel = is_tunnel(protocol, DESTINATION_PORT(key));
    if (!captured(&unit->packet) || tunnel || is_time_exceeded(key) || !sum) {
        lose(LOSS_FILTERED, size->packets, size->bytes);
        return;
    }
    enum description found = describe(ctx, &unit->packet, unit);
    if (found != DESCRIBED) {
        u32 reason = found == OF_TRACING ? LOSS_FILTERED : LOSS_MALFORMED;
        lose(reason, size->packets, size->bytes);
        return;
    }
    sum->packets += size->packets;
    sum->bytes += size->bytes;
    /* The size alone does not tell its packets. The window lacks them, and has no wrong ones. */
    if (ctx->gso_size && protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
        lose(LOSS_TABLE_FULL, size->packets, size->bytes);
    else
        record(ctx, unit);
}

int segment(CONTEXT *ctx) {
    if (is_tracers(ctx))
        return VERDICT_PASS;
    struct packet packet = {};
    struct wire_size size = size_on_wire(ctx);
    u32 zero = 0;
    struct unit *unit = units.lookup(&zero);
    if (!unit || !parse_or_lose(ctx, &packet, size.packets, size.bytes))
        return VERDICT_PASS;
    unit->packet = packet;
    take(ctx, unit, &size);
    return VERDICT_PASS;
}
