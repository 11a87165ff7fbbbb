/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Headers between a frame's first byte and IP: Ethernet and VLAN tags; and rarer ones, which are
 * looked through: MPLS, also with Ethernet in it, PPPoE, PBB (802.1ah), FabricPath, further tags.
 */
#pragma once

#include <uapi/linux/if_ether.h>
#include "probe.h"

#define MAX_VLAN_TAGS 2
#define VLAN_ID 0xfff
#define MAX_LINK_HEADERS 8
#define MAX_LINK_OFFSET 0x3ff

#define ETH_P_PBB 0x88e7        /* PBB's I-tag; ETH_P_8021AH of newer kernels */
#define ETH_P_FABRICPATH 0x8903 /* Cisco: addresses before it, a tag and a frame behind it */
#define PPP_IPV4 0x0021
#define PPP_IPV6 0x0057
#define MPLS_BOTTOM 1 /* bit of the third byte */

struct cursor {
    void *at;
    void *end;
    void *start; /* of the bytes at hand */
    u64 vlan;    /* id of the first tag that was skipped */
#if INTERFACES
    u64 raw; /* whether the frame starts with the IP header */
#endif
};

static __always_inline void take_vlan(struct cursor *c, void *tag) {
    if (!c->vlan)
        c->vlan = bpf_ntohs(*(__be16 *)tag) & VLAN_ID;
}

static __always_inline bool skip_ethernet(struct cursor *c, __be16 *type) {
    c->at += ETH_HLEN;
    if (c->at > c->end)
        return false;
    *type = *(__be16 *)(c->at - sizeof(*type)); /* struct ethhdr is packed: byte by byte */
#pragma unroll
    for (int i = 0; i < MAX_VLAN_TAGS; i++) {
        if (*type != bpf_htons(ETH_P_8021Q) && *type != bpf_htons(ETH_P_8021AD))
            break;
        if (c->at + VLAN_TAG_SIZE > c->end)
            return false;
        take_vlan(c, c->at);
        *type = ((__be16 *)c->at)[1];
        c->at += VLAN_TAG_SIZE;
    }
    return true;
}

static __always_inline bool skip_nothing(struct cursor *c, __be16 *type) {
    u8 *first = c->at;
    if ((void *)(first + 1) > c->end)
        return false;
    *type = *first >> 4 == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
    return true;
}

/* Move `c` from a frame's first byte to its network header and set `type`, its Ethernet type.
 * Returns false if the bytes at hand end before that header. */
static __always_inline bool skip_link(struct cursor *c, __be16 *type) {
    c->start = c->at;
#if INTERFACES
    return unlikely(c->raw) ? skip_nothing(c, type) : skip_ethernet(c, type);
#elif LINK_ETHERNET
    return skip_ethernet(c, type);
#else
    return skip_nothing(c, type);
#endif
}

/* The Ethernet type of the packet behind the last MPLS label; 0 if the bytes at hand end there. */
static __always_inline __be16 type_in_mpls(struct cursor *c, u8 *first) {
    if ((void *)(first + 1) > c->end)
        return 0;
    switch (*first >> 4) {
    case 4:
        return bpf_htons(ETH_P_IP);
    case 6:
        return bpf_htons(ETH_P_IPV6);
    default: /* a pseudowire (RFC 4448), here with a control word */
        return bpf_htons(ETH_P_TEB);
    }
}

/*
 * Move `c` from a header of Ethernet type `type` to the next one, and set `type`. Any other type
 * becomes 0. Returns false if the bytes at hand end before the next header.
 */
static __always_inline bool skip_header(struct cursor *c, __be16 *type) {
    u8 *header = c->at;
    u32 size;
    if (*type == bpf_htons(ETH_P_8021Q) || *type == bpf_htons(ETH_P_8021AD)) {
        size = VLAN_TAG_SIZE;
        if ((void *)(header + size) > c->end)
            return false;
        take_vlan(c, header);
        *type = *(__be16 *)(header + 2);
    } else if (*type == bpf_htons(ETH_P_MPLS_UC) || *type == bpf_htons(ETH_P_MPLS_MC)) {
        size = 4;
        if ((void *)(header + size) > c->end)
            return false;
        if (header[2] & MPLS_BOTTOM) {
            *type = type_in_mpls(c, header + size);
            if (!*type)
                return false;
            if (*type == bpf_htons(ETH_P_TEB))
                size += 4;
        }
    } else if (*type == bpf_htons(ETH_P_PPP_SES)) {
        size = 8;
        if ((void *)(header + size) > c->end)
            return false;
        __be16 protocol = *(__be16 *)(header + 6);
        *type = protocol == bpf_htons(PPP_IPV4)   ? bpf_htons(ETH_P_IP)
                : protocol == bpf_htons(PPP_IPV6) ? bpf_htons(ETH_P_IPV6)
                                                  : 0;
    } else {
        /* Behind a tag of 0, 2 or 4 bytes two addresses and a type. */
        if (*type == bpf_htons(ETH_P_TEB)) {
            size = ETH_HLEN;
        } else if (*type == bpf_htons(ETH_P_FABRICPATH)) {
            size = 2 + ETH_HLEN;
        } else if (*type == bpf_htons(ETH_P_PBB)) {
            size = 4 + ETH_HLEN;
        } else {
            *type = 0;
            return true;
        }
        if ((void *)(header + size) > c->end)
            return false;
        *type = *(__be16 *)(header + size - 2);
    }
    c->at = header + size;
    return true;
}

/* As `forget`: else the verifier follows every sequence of headers on its own. */
static __always_inline void blur(struct cursor *c, __be16 *type) {
    c->at = c->start + (forget(c->at - c->start) & MAX_LINK_OFFSET);
    c->vlan = forget(c->vlan);
    *type = forget(*type);
}

/*
 * Move `c` on to IP from a header of Ethernet type `type`, and set `type`. Returns false if the
 * bytes at hand end before that.
 */
static __always_inline bool look_through(struct cursor *c, __be16 *type) {
    /* Adds 0. To the verifier the way behind one tag is the way behind two, from here on. */
    c->start += forget(c->at - c->start) >> 31;
#pragma nounroll
    for (int i = 0; i < MAX_LINK_HEADERS; i++) {
        blur(c, type);
        if (*type == bpf_htons(ETH_P_IP) || *type == bpf_htons(ETH_P_IPV6) || !*type)
            break;
        if (!skip_header(c, type))
            return false;
    }
    return true;
}
