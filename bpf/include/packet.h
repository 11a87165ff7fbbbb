/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Parsing a frame down to the transport header: headers of the link (link.h), IPv4, IPv6 with
 * extension headers, fragments; TCP, UDP, ICMP and every other protocol.
 *
 * LINK_ETHERNET is 0 for interfaces whose packets start with the IP header (tun, WireGuard).
 * TUNNELS is 1 for probes that look into tunnels (tunnel.h). With 2, flows count a packet in its
 * outer flow, too. A probe that defines IPV4_ONLY does without IPv6, and compiles in half the time.
 */
#pragma once

#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>
#include <uapi/linux/in6.h>
#include <uapi/linux/ip.h>
#include <uapi/linux/ipv6.h>
#include <uapi/linux/tcp.h>
#include "link.h"

#define MAX_EXTENSION_HEADERS 8
#define MAX_EXTENSION_SIZE 0xfff
#define HEADERS_PULLED 512

#define IPV4_OFFSET 0x1fff
#define IPV4_FRAGMENT 0x3fff /* more fragments, or an offset */
#define IPV6_OFFSET 0xfff8
#define IPV6_FRAGMENT 0xfff9

/* Bit n: ICMP messages of type n, for IPv6 of type 128 + n, have an identifier at byte 4: echo,
 * timestamp, address mask, mobility, extended echo. */
#define ICMP_IDENTIFIED (0x7e101ULL | 3ULL << 42)
#define ICMP6_IDENTIFIED (0xf0003ULL | 3ULL << 32)

enum parse_result {
    PARSED,
    PARSED_CUT,   /* the bytes at hand end before the transport header's: no ports are known */
    PARSED_SHORT, /* they end inside the IP header */
    PARSED_NOT_IP,
    PARSED_MALFORMED,
    PARSED_FILTERED, /* IPv6, for a probe that is IPV4_ONLY */
};

/*
 * The flow that a packet belongs to: five words, six with TUNNELS, compared and hashed as such.
 * They are put together in registers, whole: bcc's instruction set has no 32-bit arithmetic, and
 * halves cost shifts. Little endian only, as every machine that probedeck runs on.
 */
struct flow_key {
    u64 source[2]; /* network order; IPv4 in the first four bytes, the rest zero */
    u64 destination[2];
    u64 transport; /* see TRANSPORT */
#if TUNNELS || INTERFACES
    /* Its id, and above 32 bits its kind (enum tunnel); 0: outside of tunnels. In flows of several
     * interfaces the interface's number is above 40 bits, and above 56 COUNTED_BEFORE. */
    u64 tunnel;
#endif
};

/*
 * In memory: source port, destination port (network order), protocol, version, VLAN id. Ports are 0
 * for protocols without ports, and in later fragments until `join_fragments` finds them. ICMP has
 * type and code in place of the destination port, as in NetFlow. `widen_key` adds the VLAN id, and
 * ICMP's identifier in place of the source port.
 */
#define TRANSPORT(ports, protocol, version)                                                        \
    ((u64)(ports) | (u64)(protocol) << 32 | (u64)(version) << 40)
#define SOURCE_PORT(key) ((key)->transport & 0xffff)
#define DESTINATION_PORT(key) ((key)->transport >> 16 & 0xffff)
#define PROTOCOL(key) ((key)->transport >> 32 & 0xff)
#define VERSION(key) ((key)->transport >> 40 & 0xff)
#define VLAN(key) ((key)->transport >> 48)
#if TUNNELS
#define TUNNEL_ID(key) ((key)->tunnel & 0xffffffff)
#define TUNNEL_KIND(key) ((key)->tunnel >> 32 & 0xff)
#else
#define TUNNEL_ID(key) 0
#define TUNNEL_KIND(key) 0
#endif

struct packet {
    struct flow_key key;
    u64 tcp_flags;
    u64 tos;          /* IPv4's type of service, IPv6's traffic class */
    u64 vlan;         /* id of the outermost tag, also behind MPLS labels; 0: none */
    u64 icmp_id;      /* of echo and the like, network order */
    u64 fragment;     /* the header's bits that make it one, network order; 0: no fragment */
    u64 datagram;     /* a fragment's identification, network order */
    u64 network_at;   /* offset of the IP header in the frame */
    u64 transport_at; /* likewise, of the transport header */
};

static __always_inline int parse_transport(struct cursor *c, struct packet *packet, u64 protocol,
                                           u64 version) {
    u64 ports = 0;
    int result = PARSED;
    if (protocol == IPPROTO_TCP) {
        u8 *tcp = c->at;
        if ((void *)(tcp + sizeof(struct tcphdr)) > c->end) {
            result = PARSED_CUT;
        } else {
            ports = *(u32 *)tcp;
            packet->tcp_flags = tcp[13];
        }
    } else if (protocol == IPPROTO_UDP || protocol == IPPROTO_UDPLITE || protocol == IPPROTO_SCTP ||
               protocol == IPPROTO_DCCP) {
        if (c->at + sizeof(u32) > c->end)
            result = PARSED_CUT;
        else
            ports = *(u32 *)c->at;
    } else if (protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) {
        u8 *icmp = c->at;
        if ((void *)(icmp + 2) > c->end) {
            result = PARSED_CUT;
        } else {
            ports = (u64) * (u16 *)icmp << 16;
            bool identified =
                protocol == IPPROTO_ICMP
                    ? icmp[0] < 64 && ICMP_IDENTIFIED >> icmp[0] & 1
                    : icmp[0] >= 128 && icmp[0] < 192 && ICMP6_IDENTIFIED >> (icmp[0] & 63) & 1;
            if (identified) {
                if ((void *)(icmp + 6) > c->end)
                    result = PARSED_CUT;
                else
                    packet->icmp_id = *(u16 *)(icmp + 4);
            }
        }
    }
    packet->key.transport = TRANSPORT(ports, protocol, version);
    return result;
}

static __always_inline int parse_ipv4(struct cursor *c, struct packet *packet) {
    struct iphdr *ip = c->at;
    if ((void *)(ip + 1) > c->end)
        return PARSED_SHORT;
    if (ip->version != 4 || ip->ihl < 5)
        return PARSED_MALFORMED;
    packet->key.source[0] = ip->saddr;
    packet->key.destination[0] = ip->daddr;
    packet->tos = ip->tos;
    u64 protocol = ip->protocol;
    packet->fragment = ip->frag_off & bpf_htons(IPV4_FRAGMENT);
    packet->datagram = ip->id;
    if (ip->frag_off & bpf_htons(IPV4_OFFSET)) {
        packet->key.transport = TRANSPORT(0, protocol, 4);
        return PARSED;
    }
    c->at += ip->ihl * 4;
    return parse_transport(c, packet, protocol, 4);
}

static __always_inline int parse_ipv6(struct cursor *c, struct packet *packet) {
    struct ipv6hdr *ip = c->at;
    if ((void *)(ip + 1) > c->end)
        return PARSED_SHORT;
    if (ip->version != 6)
        return PARSED_MALFORMED;
    u64 *addresses = (u64 *)&ip->saddr;
    packet->key.source[0] = addresses[0];
    packet->key.source[1] = addresses[1];
    packet->key.destination[0] = addresses[2];
    packet->key.destination[1] = addresses[3];
    packet->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
    u64 protocol = ip->nexthdr;
    c->at = ip + 1;

    /* Where a header is cut short or the chain is too long, the protocol is where it ended. */
#pragma nounroll
    for (int i = 0; i < MAX_EXTENSION_HEADERS; i++) {
        u8 *header = c->at;
        u32 size;
        packet->key.transport = TRANSPORT(0, protocol, 6);
        switch (protocol) {
        case IPPROTO_HOPOPTS:
        case IPPROTO_ROUTING:
        case IPPROTO_DSTOPTS:
        case IPPROTO_MH:
            if ((void *)(header + 8) > c->end)
                return PARSED_CUT;
            size = (header[1] + 1) * 8;
            break;
        case IPPROTO_FRAGMENT:
            if ((void *)(header + 8) > c->end)
                return PARSED_CUT;
            packet->fragment = *(__be16 *)(header + 2) & bpf_htons(IPV6_FRAGMENT);
            packet->datagram = *(__be32 *)(header + 4);
            if (packet->fragment & bpf_htons(IPV6_OFFSET)) {
                packet->key.transport = TRANSPORT(0, header[0], 6);
                return PARSED;
            }
            size = 8;
            break;
        case IPPROTO_AH:
            if ((void *)(header + 8) > c->end)
                return PARSED_CUT;
            size = (header[1] + 2) * 4;
            break;
        default:
            return parse_transport(c, packet, protocol, 6);
        }
        protocol = header[0];
        c->at += forget(size) & MAX_EXTENSION_SIZE;
    }
    packet->key.transport = TRANSPORT(0, protocol, 6);
    return PARSED;
}

static __always_inline int parse_network(struct cursor *c, __be16 type, struct packet *packet) {
    if (type == bpf_htons(ETH_P_IP))
        return parse_ipv4(c, packet);
    if (type == bpf_htons(ETH_P_IPV6))
#ifdef IPV4_ONLY
        return PARSED_FILTERED;
#else
        return parse_ipv6(c, packet);
#endif
    return PARSED_NOT_IP;
}

/*
 * Fill `packet`, which is zero, from the frame at `c`. If the frame was parsed whole, `c` is then
 * at its transport header. The bytes of a socket buffer may go on past the end.
 */
static __always_inline int parse_frame(struct cursor *c, struct packet *packet) {
    void *frame = c->at;
    __be16 type;
    if (!skip_link(c, &type))
        return PARSED_SHORT;
#if LINK_ETHERNET
    if (unlikely(type != bpf_htons(ETH_P_IP) && type != bpf_htons(ETH_P_IPV6)) &&
        !look_through(c, &type))
        return PARSED_SHORT;
    /* The verifier follows the packet once, not once for each length of the link's headers. */
    c->at = c->start + (forget(c->at - c->start) & MAX_LINK_OFFSET);
#endif
    packet->vlan = c->vlan;
    packet->network_at = c->at - frame;
    int result = parse_network(c, type, packet);
    /* Changes nothing. The verifier follows the packet once, not once for each protocol of IPv6. */
    asm volatile("%0 += %1\n%0 -= %1" : "+r"(packet->key.transport) : "r"(packet->key.source[0]));
    packet->transport_at = c->at - frame;
    return result;
}

/* As `parse_frame`, of a frame whose transport header nobody asks for. */
static __always_inline int parse(CONTEXT *ctx, struct packet *packet) {
    struct cursor c = {(void *)(long)ctx->data, (void *)(long)ctx->data_end};
#if INTERFACES
    c.raw = LINK_RAW(ctx);
#endif
    return parse_frame(&c, packet);
}

/* Whether a packet is a fragment without the transport header. */
static __always_inline bool is_later_fragment(struct packet *packet) {
    return packet->fragment &
           (VERSION(&packet->key) == 4 ? bpf_htons(IPV4_OFFSET) : bpf_htons(IPV6_OFFSET));
}

/* Fill `packet`, which is zero, from the hook's; a socket buffer's headers are made readable. */
static __always_inline int parse_packet(CONTEXT *ctx, struct packet *packet) {
#ifdef HOOK_XDP
    return parse(ctx, packet);
#else
    int result;
#pragma nounroll
    for (int attempt = 0; attempt < 2; attempt++) {
        *packet = (struct packet){};
        result = parse(ctx, packet);
        if (result != PARSED_CUT && result != PARSED_SHORT)
            break;
        if (bpf_skb_pull_data(ctx, min(ctx->len, (u32)HEADERS_PULLED)))
            break;
    }
    /* vlan_proto may be of a tag that has been removed, but vlan_present costs more. */
    if (unlikely(ctx->vlan_proto) && ctx->vlan_present)
        packet->vlan = ctx->vlan_tci & VLAN_ID;
    return result;
#endif
}

/* As `parse_packet`; false, and the reason counted, where no flow can be made of the packet. */
static __always_inline bool parse_or_lose(CONTEXT *ctx, struct packet *packet, u64 packets,
                                          u64 bytes) {
    int result = parse_packet(ctx, packet);
    if (COUNTED_BEFORE(ctx))
        packets = bytes = 0;
    if (result == PARSED_NOT_IP)
        lose(LOSS_NOT_IP, packets, bytes);
    else if (result == PARSED_MALFORMED || result == PARSED_SHORT)
        lose(LOSS_MALFORMED, packets, bytes);
    else if (result == PARSED_FILTERED)
        lose(LOSS_FILTERED, packets, bytes);
    else
        return true;
    return false;
}

/* Add to the key what tells more flows apart than a 5-tuple does. */
static __always_inline void widen_key(struct packet *packet) {
    packet->key.transport |= packet->vlan << 48 | packet->icmp_id;
}
