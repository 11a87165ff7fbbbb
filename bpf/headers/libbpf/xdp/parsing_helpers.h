/* Names and results of libxdp's header of this name, for programs that include it. A cursor walks
 * over the packet; each function checks one header, steps over it, and returns what follows: -1 if
 * the packet is too short or the header is broken. */
#pragma once

#include <stddef.h>
#include <linux/icmp.h>
#include <linux/icmpv6.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef VLAN_MAX_DEPTH
#define VLAN_MAX_DEPTH 2
#endif
#ifndef IPV6_EXT_MAX_CHAIN
#define IPV6_EXT_MAX_CHAIN 6
#endif
#define VLAN_VID_MASK 0x0fff

struct hdr_cursor {
    void *pos;
};

struct vlan_hdr {
    __be16 h_vlan_TCI;
    __be16 h_vlan_encapsulated_proto;
};

struct icmphdr_common {
    __u8 type;
    __u8 code;
    __sum16 cksum;
};

struct collect_vlans {
    __u16 id[VLAN_MAX_DEPTH];
};

/* Checks a header of fixed size, stores its place, and steps over it. */
#define _TAKE_HEADER(cursor, end, to)                                                              \
    do {                                                                                           \
        typeof(*(to)) _taken = (cursor)->pos;                                                      \
        if ((void *)(_taken + 1) > (end))                                                          \
            return -1;                                                                             \
        (cursor)->pos = _taken + 1;                                                                \
        *(to) = _taken;                                                                            \
    } while (0)

static __always_inline int proto_is_vlan(__u16 proto) {
    return proto == bpf_htons(ETH_P_8021Q) || proto == bpf_htons(ETH_P_8021AD);
}

/* Returns the protocol behind the VLAN tags, in network order. */
static __always_inline int parse_ethhdr_vlan(struct hdr_cursor *cursor, void *data_end,
                                             struct ethhdr **ethhdr, struct collect_vlans *vlans) {
    _TAKE_HEADER(cursor, data_end, ethhdr);
    struct vlan_hdr *tag = cursor->pos;
    __u16 proto = (*ethhdr)->h_proto;
#pragma unroll
    for (int i = 0; i < VLAN_MAX_DEPTH; i++) {
        if (!proto_is_vlan(proto) || (void *)(tag + 1) > data_end)
            break;
        if (vlans)
            vlans->id[i] = bpf_ntohs(tag->h_vlan_TCI) & VLAN_VID_MASK;
        proto = tag->h_vlan_encapsulated_proto;
        tag++;
    }
    cursor->pos = tag;
    return proto;
}

static __always_inline int parse_ethhdr(struct hdr_cursor *cursor, void *data_end,
                                        struct ethhdr **ethhdr) {
    return parse_ethhdr_vlan(cursor, data_end, ethhdr, NULL);
}

/* Returns the first header that is no extension of IPv6. */
static __always_inline int skip_ip6hdrext(struct hdr_cursor *cursor, void *data_end, __u8 next) {
    for (int i = 0; i < IPV6_EXT_MAX_CHAIN; i++) {
        struct ipv6_opt_hdr *header = cursor->pos;
        if ((void *)(header + 1) > data_end)
            return -1;
        if (next == IPPROTO_HOPOPTS || next == IPPROTO_DSTOPTS || next == IPPROTO_ROUTING ||
            next == IPPROTO_MH)
            cursor->pos = (char *)header + (header->hdrlen + 1) * 8;
        else if (next == IPPROTO_AH)
            cursor->pos = (char *)header + (header->hdrlen + 2) * 4;
        else if (next == IPPROTO_FRAGMENT)
            cursor->pos = (char *)header + 8;
        else
            return next;
        next = header->nexthdr;
    }
    return -1;
}

static __always_inline int parse_ip6hdr(struct hdr_cursor *cursor, void *data_end,
                                        struct ipv6hdr **ip6hdr) {
    struct ipv6hdr *header;
    _TAKE_HEADER(cursor, data_end, &header);
    if (header->version != 6)
        return -1;
    *ip6hdr = header;
    return skip_ip6hdrext(cursor, data_end, header->nexthdr);
}

static __always_inline int parse_iphdr(struct hdr_cursor *cursor, void *data_end,
                                       struct iphdr **iphdr) {
    struct iphdr *header = cursor->pos;
    if ((void *)(header + 1) > data_end || header->version != 4)
        return -1;
    int size = header->ihl * 4;
    if (size < (int)sizeof(*header) || cursor->pos + size > data_end)
        return -1;
    cursor->pos += size;
    *iphdr = header;
    return header->protocol;
}

static __always_inline int parse_icmp6hdr(struct hdr_cursor *cursor, void *data_end,
                                          struct icmp6hdr **icmp6hdr) {
    _TAKE_HEADER(cursor, data_end, icmp6hdr);
    return (*icmp6hdr)->icmp6_type;
}

static __always_inline int parse_icmphdr(struct hdr_cursor *cursor, void *data_end,
                                         struct icmphdr **icmphdr) {
    _TAKE_HEADER(cursor, data_end, icmphdr);
    return (*icmphdr)->type;
}

static __always_inline int parse_icmphdr_common(struct hdr_cursor *cursor, void *data_end,
                                                struct icmphdr_common **icmphdr) {
    _TAKE_HEADER(cursor, data_end, icmphdr);
    return (*icmphdr)->type;
}

/* Returns the bytes of the payload. */
static __always_inline int parse_udphdr(struct hdr_cursor *cursor, void *data_end,
                                        struct udphdr **udphdr) {
    _TAKE_HEADER(cursor, data_end, udphdr);
    int size = bpf_ntohs((*udphdr)->len) - (int)sizeof(struct udphdr);
    return size < 0 ? -1 : size;
}

/* Returns the bytes of the header. */
static __always_inline int parse_tcphdr(struct hdr_cursor *cursor, void *data_end,
                                        struct tcphdr **tcphdr) {
    struct tcphdr *header = cursor->pos;
    if ((void *)(header + 1) > data_end)
        return -1;
    int size = header->doff * 4;
    if (size < (int)sizeof(*header) || cursor->pos + size > data_end)
        return -1;
    cursor->pos += size;
    *tcphdr = header;
    return size;
}
