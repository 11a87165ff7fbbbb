/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Looking into tunnels: GRE, IP in IP, VXLAN, Geneve and GTP-U, each in IPv4 and IPv6.
 *
 * `parse_flow` parses a packet of the hook; with TUNNELS, `enter_tunnels` then turns it into the
 * innermost IP packet that can be parsed. Later fragments of a tunnel's packets have no inner
 * header: they stay in the flow of the tunnel.
 */
#pragma once

#include "fragment.h"

/* As TUNNELS in probes/tunnels.py. */
enum tunnel {
    NO_TUNNEL,
    TUNNEL_GRE,
    TUNNEL_IPIP,
    TUNNEL_VXLAN,
    TUNNEL_GENEVE,
    TUNNEL_GTP,
};

#define MAX_INNER_HEADERS 24
#define MAX_TUNNEL_OFFSET 0x3ff
#define MAX_GTP_EXTENSIONS 4
#define TUNNEL_HEADER 16 /* of UDP and VXLAN, Geneve without options, or GTP with its flags */

#define GRE_CHECKSUM 0x80 /* bits of the first byte: four bytes each */
#define GRE_ROUTING 0x40
#define GRE_KEY 0x20
#define GRE_SEQUENCE 0x10
#define GRE_VERSION 7 /* of the second byte */
#define VXLAN_HAS_ID 0x08
#define GTP_VERSION_1 0x30 /* and the protocol type of GTP itself, in the upper four bits */
#define GTP_OPTIONAL 7     /* one of the flags for four more bytes */
#define GTP_EXTENSION 4
#define GTP_PAYLOAD 255

/* As `parse_or_lose`; a fragment has the ports of its datagram, and the key has all its parts. */
static __always_inline bool parse_flow(CONTEXT *ctx, struct packet *packet, u64 packets,
                                       u64 bytes) {
    if (!parse_or_lose(ctx, packet, packets, bytes))
        return false;
    widen_key(packet);
    join_fragments(packet);
    return true;
}

#if TUNNELS

static __always_inline __be16 type_of_ip(u8 *first) {
    return *first >> 4 == 4 ? bpf_htons(ETH_P_IP) : *first >> 4 == 6 ? bpf_htons(ETH_P_IPV6) : 0;
}

static __always_inline bool open_gre(struct cursor *c, __be16 *type, u64 *id) {
    u8 *header = c->at;
    if ((void *)(header + 4) > c->end || header[0] & GRE_ROUTING || header[1] & GRE_VERSION)
        return false;
    u8 flags = header[0];
    *type = *(__be16 *)(header + 2);
    c->at += forget(flags & GRE_CHECKSUM ? 8 : 4) & 15;
    if (flags & GRE_KEY) {
        if (c->at + 4 > c->end)
            return false;
        *id = bpf_ntohl(*(__be32 *)c->at);
        c->at += 4;
    }
    if (flags & GRE_SEQUENCE)
        c->at += 4;
    return true;
}

/* Open GTP-U behind the UDP header. */
static __always_inline bool open_gtp(struct cursor *c, __be16 *type, u64 *id) {
    u8 *header = c->at;
    if ((header[8] & 0xf0) != GTP_VERSION_1 || header[9] != GTP_PAYLOAD)
        return false;
    *id = bpf_ntohl(*(__be32 *)(header + 12));
    c->at += TUNNEL_HEADER;
    if (header[8] & GTP_OPTIONAL) {
        u8 *optional = c->at;
        if ((void *)(optional + 4) > c->end)
            return false;
        u64 next = header[8] & GTP_EXTENSION ? optional[3] : 0;
        c->at += 4;
#pragma nounroll
        for (int i = 0; i < MAX_GTP_EXTENSIONS && next; i++) {
            u8 *extension = c->at;
            if ((void *)(extension + 1) > c->end)
                return false;
            /* In units of four bytes; the last byte is the next extension's type. */
            u8 *last = c->at + (forget(*extension * 4 - 1) & 0x3ff);
            if ((void *)(last + 1) > c->end)
                return false;
            next = *last;
            c->at = last + 1;
        }
    }
    if (c->at + 1 > c->end)
        return false;
    *type = type_of_ip(c->at);
    return true;
}

static __always_inline bool open_udp(struct cursor *c, u64 port, __be16 *type, u64 *kind, u64 *id) {
    u8 *header = c->at;
    if ((void *)(header + TUNNEL_HEADER) > c->end)
        return false;
    if (port == bpf_htons(PORT_GTP)) {
        *kind = TUNNEL_GTP;
        return open_gtp(c, type, id);
    }
    *id = bpf_ntohl(*(__be32 *)(header + 12)) >> 8;
    c->at += TUNNEL_HEADER;
    if (port == bpf_htons(PORT_GENEVE)) {
        *kind = TUNNEL_GENEVE;
        *type = *(__be16 *)(header + 10);
        c->at += forget((header[8] & 63) * 4) & 0xff;
        return !(header[8] & 0xc0);
    }
    *kind = TUNNEL_VXLAN;
    *type = bpf_htons(ETH_P_TEB);
    return header[8] & VXLAN_HAS_ID;
}

static __always_inline bool has_tunnel(struct packet *packet) {
    return is_tunnel(is_later_fragment(packet) ? 0 : PROTOCOL(&packet->key),
                     DESTINATION_PORT(&packet->key));
}

/* Move `c` from the transport header of `packet`, which has a tunnel, to the packet inside. */
static __always_inline bool open_tunnel(struct cursor *c, struct packet *packet, __be16 *type,
                                        u64 *tunnel) {
    u64 kind = TUNNEL_IPIP, id = 0;
    bool opened = true;
    switch (PROTOCOL(&packet->key)) {
    case IPPROTO_IPIP:
        *type = bpf_htons(ETH_P_IP);
        break;
    case IPPROTO_IPV6:
        *type = bpf_htons(ETH_P_IPV6);
        break;
    case IPPROTO_GRE:
        kind = TUNNEL_GRE;
        opened = open_gre(c, type, &id);
        break;
    default:
        opened = open_udp(c, DESTINATION_PORT(&packet->key), type, &kind, &id);
    }
    *tunnel = id | kind << 32;
    return opened;
}

/*
 * The packet so far, and the one that is being parsed. They are in a map because the verifier knows
 * nothing of the values there: it follows each kind of header once at each place, in place of every
 * sequence of headers.
 */
struct inside {
    struct packet outer;
    struct packet packet;
    struct packet inner;
    u32 begun; /* whether `inner` has an IP header */
    u32 entered;
};

BPF_PERCPU_ARRAY(insides, struct inside, 1);

/* The next header inside of a tunnel: an Ethernet type, an IP protocol, or nothing more. */
#define IN_IPV4 0x100 /* above a protocol */
#define IN_IPV6 0x200
#define NOTHING_MORE 0

/* Begin `inner` with the IPv4 header at `c`. */
static __always_inline u32 begin_ipv4(struct cursor *c, struct inside *inside) {
    struct packet *inner = &inside->inner;
    struct iphdr *ip = c->at;
    if ((void *)(ip + 1) > c->end || ip->version != 4 || ip->ihl < 5)
        return NOTHING_MORE;
    inner->key.source[0] = ip->saddr;
    inner->key.destination[0] = ip->daddr;
    inner->tos = ip->tos;
    inner->fragment = ip->frag_off & bpf_htons(IPV4_FRAGMENT);
    inner->datagram = ip->id;
    inner->network_at = c->at - c->start;
    inner->key.transport = TRANSPORT(0, ip->protocol, 4);
    inside->begun = 1;
    c->at += ip->ihl * 4;
    return ip->frag_off & bpf_htons(IPV4_OFFSET) ? NOTHING_MORE : IN_IPV4 | ip->protocol;
}

static __always_inline u32 begin_ipv6(struct cursor *c, struct inside *inside) {
    struct packet *inner = &inside->inner;
    struct ipv6hdr *ip = c->at;
    if ((void *)(ip + 1) > c->end || ip->version != 6)
        return NOTHING_MORE;
    u64 *addresses = (u64 *)&ip->saddr;
    inner->key.source[0] = addresses[0];
    inner->key.source[1] = addresses[1];
    inner->key.destination[0] = addresses[2];
    inner->key.destination[1] = addresses[3];
    inner->tos = ip->priority << 4 | ip->flow_lbl[0] >> 4;
    inner->network_at = c->at - c->start;
    inner->key.transport = TRANSPORT(0, ip->nexthdr, 6);
    inside->begun = 1;
    c->at = ip + 1;
    return IN_IPV6 | ip->nexthdr;
}

/* Skip an extension header of IPv6. */
static __always_inline u32 skip_extension(struct cursor *c, struct packet *inner, u32 protocol) {
    u8 *header = c->at;
    if ((void *)(header + 8) > c->end)
        return NOTHING_MORE;
    u32 size = (header[1] + 1) * 8;
    inner->key.transport = TRANSPORT(0, header[0], 6);
    if (protocol == IPPROTO_FRAGMENT) {
        size = 8;
        inner->fragment = *(__be16 *)(header + 2) & bpf_htons(IPV6_FRAGMENT);
        inner->datagram = *(__be32 *)(header + 4);
        if (inner->fragment & bpf_htons(IPV6_OFFSET))
            return NOTHING_MORE;
    } else if (protocol == IPPROTO_AH) {
        size = (header[1] + 2) * 4;
    }
    c->at += forget(size) & MAX_EXTENSION_SIZE;
    return IN_IPV6 | header[0];
}

static __always_inline bool is_extension(u32 header) {
    switch (header) {
    case IN_IPV6 | IPPROTO_HOPOPTS:
    case IN_IPV6 | IPPROTO_ROUTING:
    case IN_IPV6 | IPPROTO_DSTOPTS:
    case IN_IPV6 | IPPROTO_MH:
    case IN_IPV6 | IPPROTO_FRAGMENT:
    case IN_IPV6 | IPPROTO_AH:
        return true;
    default:
        return false;
    }
}

/* Take a transport header, or the end. Returns the header in the tunnel that begins there. */
static __always_inline u32 open_transport(struct cursor *c, struct inside *inside, u32 header) {
    struct packet *packet = &inside->packet, *inner = &inside->inner;
    if (inside->begun) {
        inner->transport_at = c->at - c->start;
        if (header != NOTHING_MORE)
            parse_transport(c, inner, header & 0xff, VERSION(&inner->key));
        if (!inner->vlan)
            inner->vlan = packet->vlan;
        widen_key(inner);
        join_fragments(inner);
        *packet = *inner;
        inside->entered = 1;
        inside->begun = 0;
    }
    u64 tunnel;
    __be16 type = 0;
    if (header == NOTHING_MORE || !has_tunnel(packet) || !open_tunnel(c, packet, &type, &tunnel))
        return NOTHING_MORE;
    *inner = (struct packet){};
    inner->key.tunnel = tunnel;
    return bpf_ntohs(type);
}

/*
 * Replace `packet` by the innermost one that can be parsed. Returns the tunnel's own packet as
 * `outer`, or nothing if `packet` is outside of tunnels.
 */
static __always_inline struct inside *enter_tunnels(CONTEXT *ctx, struct packet *packet) {
    u32 zero = 0;
    if (likely(!has_tunnel(packet)))
        return 0;
    struct inside *inside = insides.lookup(&zero);
    if (!inside)
        return 0;
    inside->outer = inside->packet = *packet;
    inside->begun = inside->entered = 0;
    u32 at = packet->transport_at, header = IN_IPV4;
    asm volatile("" : : : "memory"); /* read the pointers again, without known bounds */
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
#ifndef HOOK_XDP
    u32 wanted = min(ctx->len, (u32)HEADERS_PULLED);
    if (end - data < wanted) {
        bpf_skb_pull_data(ctx, wanted);
        data = (void *)(long)ctx->data;
        end = (void *)(long)ctx->data_end;
    }
#endif
#pragma nounroll
    for (int i = 0; i < MAX_INNER_HEADERS; i++) {
        struct cursor c = {data + (forget(at) & MAX_TUNNEL_OFFSET), end, data, inside->inner.vlan};
        header = forget(header);
        if (header == ETH_P_IP) {
            header = begin_ipv4(&c, inside);
        } else if (header == ETH_P_IPV6) {
            header = begin_ipv6(&c, inside);
        } else if (header >= ETH_P_802_3_MIN) {
            __be16 type = bpf_htons(header);
            header = skip_header(&c, &type) ? bpf_ntohs(type) : NOTHING_MORE;
            inside->inner.vlan = c.vlan;
        } else if (is_extension(header)) {
            header = skip_extension(&c, &inside->inner, header & 0xff);
        } else {
            header = open_transport(&c, inside, header);
            if (header == NOTHING_MORE)
                break;
        }
        at = c.at - data;
    }
    *packet = inside->packet;
    return inside->entered ? inside : 0;
}

#endif

/* As `parse_flow`; with TUNNELS, a tunnel's packet becomes the innermost one. */
static __always_inline bool parse_innermost(CONTEXT *ctx, struct packet *packet, u64 packets,
                                            u64 bytes) {
    if (!parse_flow(ctx, packet, packets, bytes))
        return false;
#if TUNNELS
    enter_tunnels(ctx, packet);
#endif
    return true;
}
