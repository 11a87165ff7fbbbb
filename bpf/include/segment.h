/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Large segments: one socket buffer that is several packets on the wire (TSO, GSO, GRO). It has its
 * headers once, and each packet will have, or had, its own.
 */
#pragma once

#include <uapi/linux/bpf.h>
#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>
#include <uapi/linux/in6.h>

#define VLAN_TAG_SIZE 4
#define MAX_HEADERS 12
#define MAX_HEADER_SIZE 0xfff
#define HEADER_START 14 /* bytes; every field that is needed is among them */

#define PORT_VXLAN 4789
#define PORT_VXLAN_LINUX 8472 /* the kernel's default */
#define PORT_GENEVE 6081
#define PORT_GTP 2152

/* Packets and bytes on the wire. */
struct wire_size {
    u64 packets;
    u64 bytes; /* of frames without FCS */
};

/* Whether packets of the protocol, to the port in network order, have a packet inside. */
static __always_inline bool is_tunnel(u64 protocol, u64 port) {
    switch (protocol) {
    case IPPROTO_IPIP:
    case IPPROTO_IPV6:
    case IPPROTO_GRE:
        return true;
    case IPPROTO_UDP:
        return port == bpf_htons(PORT_VXLAN) || port == bpf_htons(PORT_VXLAN_LINUX) ||
               port == bpf_htons(PORT_GENEVE) || port == bpf_htons(PORT_GTP);
    default:
        return false;
    }
}

/*
 * Return `value`, unknown to the verifier. Without this it follows every sequence of headers on its
 * own: 200,000 instructions instead of 9,000. The verifier tracks a value that is stored to the
 * lower half of a stack slot of eight bytes, so this one goes to the upper half. The assembler
 * keeps the compiler from moving it.
 */
static __always_inline u32 forget(u32 value) {
    u64 slot;
    volatile u32 *half = (u32 *)&slot + 1;
    asm volatile("" : "+r"(half));
    *half = value;
    return *half;
}

#ifndef HOOK_XDP

/* The big endian number of two bytes. */
static __always_inline u32 number_of(u8 *bytes) {
    return bytes[0] << 8 | bytes[1];
}

/*
 * The bytes of a segment before the payload of TCP, UDP or SCTP. In VXLAN, Geneve, GRE and IP in IP
 * this is the inner transport. `header` names a header by its EtherType or, below 256, its IP
 * protocol number.
 */
static __always_inline u32 headers_of(struct __sk_buff *skb) {
    u32 at = 0, header = LINK_RAW(skb) ? bpf_ntohs(skb->protocol) : ETH_P_TEB;
    u8 start[HEADER_START];
#pragma nounroll
    for (int i = 0; i < MAX_HEADERS; i++) {
        u32 size;
        if (bpf_skb_load_bytes(skb, at, start, sizeof(start)))
            break;
        switch (header) {
        case ETH_P_TEB:
            size = ETH_HLEN;
            header = number_of(start + 12);
            break;
        case ETH_P_8021Q:
        case ETH_P_8021AD:
            size = 4;
            header = number_of(start + 2);
            break;
        case ETH_P_IP:
        case IPPROTO_IPIP:
            size = (start[0] & 15) * 4;
            header = start[9];
            break;
        case ETH_P_IPV6:
        case IPPROTO_IPV6:
            size = 40;
            header = start[6];
            break;
        case IPPROTO_HOPOPTS:
        case IPPROTO_ROUTING:
        case IPPROTO_DSTOPTS:
            size = (start[1] + 1) * 8;
            header = start[0];
            break;
        case IPPROTO_GRE: /* a checksum, a key, a sequence number: four bytes each */
            size = 4 + (start[0] >> 7) * 4 + (start[0] >> 5 & 1) * 4 + (start[0] >> 4 & 1) * 4;
            header = number_of(start + 2);
            break;
        case IPPROTO_UDP:
            size = 8 + 8;
            header = ETH_P_TEB;
            switch (number_of(start + 2)) {
            case PORT_VXLAN:
            case PORT_VXLAN_LINUX:
                break;
            case PORT_GENEVE:
                size += (start[8] & 63) * 4;
                header = number_of(start + 10);
                break;
            default:
                return at + 8;
            }
            break;
        case IPPROTO_TCP:
            return at + (start[12] >> 4) * 4;
        case IPPROTO_SCTP:
            return at + 12;
        default:
            return at;
        }
        at = (forget(at) + size) & MAX_HEADER_SIZE;
        header = forget(header);
    }
    return at;
}

/*
 * The size of a large segment, without a VLAN tag outside of the buffer. The kernel gives gso_segs,
 * the number of packets, but not for a segment of a virtual machine (SKB_GSO_DODGY): that one has
 * gso_size only, the payload of each packet.
 */
static __always_inline struct wire_size segment_size(struct __sk_buff *skb) {
    struct wire_size size = {skb->gso_segs, skb->len};
#ifdef HOOK_TC_EGRESS
    /* The kernel's own sum includes the headers, of any kind of tunnel. */
    if (size.packets && skb->wire_len > skb->len) {
        size.bytes = skb->wire_len;
        return size;
    }
#endif
    u32 headers = forget(headers_of(skb));
    if (!size.packets)
        size.packets = skb->len > headers ? (skb->len - headers - 1) / skb->gso_size + 1 : 1;
    size.bytes += (size.packets - 1) * headers;
    return size;
}

#endif
