/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets that the kernel drops, by flow and reason: tracepoint skb:kfree_skb
 * (include/trace/events/skb.h), in every network namespace.
 *
 * HAS_REASON: the tracepoint has a reason (5.17). NOT_DROPPED and CONSUMED are the reasons of
 * normal frees, and UNKNOWN the one of a drop that the kernel does not explain. SK_BUFF_DEV and
 * others are offsets in the kernel's structures. All come from probes/drops/probe.py.
 *
 * Packets of path tracing (path_mark.h) end at a router, and the kernel drops them there if the
 * router is a namespace of this host. They count, apart from the packets of applications.
 */
#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>
#include <uapi/linux/in6.h>
#include "event.h"
#include "path_mark.h"

#define ENTRIES 16384
#define REASONS 512
#define MAPPED 0xffff0000 /* the third word of an IPv4 address in IPv6's form */
#define FRAGMENT_OFFSET 0x1fff
#define UDPLITE 136

struct dropped {
    u32 source[4]; /* network order; IPv4 is mapped into IPv6 */
    u32 destination[4];
    __be16 source_port;
    __be16 destination_port;
    u16 protocol;
    u8 version; /* 0: no IP header could be read */
    u8 tracing; /* 1: path tracing sent the packet, or it is the reply to such a packet */
    u32 reason;
    u32 interface; /* its index; 0: none */
    u32 namespace; /* inode number of the network namespace */
};

struct total {
    u64 packets;
    u64 bytes; /* of the packets as they were dropped, some without outer headers */
};

BPF_HASH(drops, struct dropped, struct total, ENTRIES);
BPF_HASH(reasons, u32, struct total, REASONS);

static __always_inline void add(struct total *total, u64 packets, u64 bytes) {
    lock_xadd(&total->packets, packets);
    lock_xadd(&total->bytes, bytes);
}

/* Read a transport header; `length`: bytes behind the IP header. */
static __always_inline void read_transport(struct dropped *dropped, void *transport, u32 length) {
    u16 protocol = dropped->protocol;
    u32 tcp[2] = {}, magic = 0;
    if (protocol == IPPROTO_TCP) {
        READ_KERNEL(tcp, transport, 12);
        dropped->tracing = is_tcp_of_tracing(tcp, length - 20);
    } else if (protocol == IPPROTO_UDP || protocol == IPPROTO_ICMP || protocol == IPPROTO_ICMPV6) {
        if (length >= MAGIC_AT + sizeof(magic))
            READ_KERNEL(magic, transport, MAGIC_AT);
        dropped->tracing = magic == bpf_htonl(MAGIC);
    }
    if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP && protocol != IPPROTO_SCTP &&
        protocol != UDPLITE)
        return;
    READ_KERNEL(dropped->source_port, transport, 0);
    READ_KERNEL(dropped->destination_port, transport, 2);
}

static __always_inline void read_ipv4(struct dropped *dropped, void *at) {
    struct {
        u8 version_length, tos;
        __be16 length, id, offset;
        u8 ttl, protocol;
        __be16 checksum;
        u32 source, destination;
    } header = {};
    READ_KERNEL(header, at, 0);
    if (header.version_length >> 4 != 4)
        return;
    dropped->version = 4;
    dropped->protocol = header.protocol;
    dropped->source[2] = dropped->destination[2] = MAPPED;
    dropped->source[3] = header.source;
    dropped->destination[3] = header.destination;
    u32 size = (header.version_length & 15) * 4;
    if (!(bpf_ntohs(header.offset) & FRAGMENT_OFFSET))
        read_transport(dropped, at + size, bpf_ntohs(header.length) - size);
}

static __always_inline void read_ipv6(struct dropped *dropped, void *at) {
    struct {
        u8 version, rest[3];
        __be16 length;
        u8 protocol, hops;
        u32 source[4], destination[4];
    } header = {};
    READ_KERNEL(header, at, 0);
    if (header.version >> 4 != 6)
        return;
    dropped->version = 6;
    dropped->protocol = header.protocol;
    __builtin_memcpy(dropped->source, header.source, sizeof(header.source));
    __builtin_memcpy(dropped->destination, header.destination, sizeof(header.destination));
    read_transport(dropped, at + sizeof(header), bpf_ntohs(header.length));
}

/* Where the packet was: its device, and the namespace of that or of the socket. */
static __always_inline void read_place(struct dropped *dropped, void *skb) {
    void *device = 0, *socket = 0, *net = 0;
    READ_KERNEL(device, skb, CONSTANT(SK_BUFF_DEV));
    READ_KERNEL(socket, skb, CONSTANT(SK_BUFF_SK));
    if (device) {
        READ_KERNEL(dropped->interface, device, CONSTANT(NET_DEVICE_IFINDEX));
        READ_KERNEL(net, device, CONSTANT(NET_DEVICE_ND_NET));
    } else if (socket) {
        READ_KERNEL(net, socket, CONSTANT(SOCK_COMMON_SKC_NET));
    }
    READ_KERNEL(dropped->namespace, net, CONSTANT(NET_NS_INUM));
}

/* Packets on the wire: a large segment is several. */
static __always_inline u64 count_packets(void *skb, void *head) {
    u32 end = 0;
    u16 segments = 0;
    READ_KERNEL(end, skb, CONSTANT(SK_BUFF_END));
    READ_KERNEL(segments, head + end, CONSTANT(SKB_SHARED_INFO_GSO_SEGS));
    return segments > 1 ? segments : 1;
}

int dropped(struct bpf_raw_tracepoint_args *ctx) {
    void *skb = (void *)ctx->args[0], *head = 0;
    u32 reason = CONSTANT(UNKNOWN), length = 0;
    u16 protocol = 0, network = 0;
    if (CONSTANT(HAS_REASON)) {
        reason = ctx->args[2];
        if (reason == CONSTANT(NOT_DROPPED) || reason == CONSTANT(CONSUMED))
            return 0;
    }
    READ_KERNEL(protocol, skb, CONSTANT(SK_BUFF_PROTOCOL));
    if (!protocol)
        return 0; /* no packet of a network: messages of netlink and Unix sockets */
    READ_KERNEL(head, skb, CONSTANT(SK_BUFF_HEAD));
    READ_KERNEL(network, skb, CONSTANT(SK_BUFF_NETWORK_HEADER));
    READ_KERNEL(length, skb, CONSTANT(SK_BUFF_LEN));

    struct dropped dropped = {.reason = reason};
    if (protocol == bpf_htons(ETH_P_IP))
        read_ipv4(&dropped, head + network);
    else if (protocol == bpf_htons(ETH_P_IPV6))
        read_ipv6(&dropped, head + network);
    read_place(&dropped, skb);

    u64 packets = count_packets(skb, head);
    struct total none = {}, *total = reasons.lookup_or_try_init(&reason, &none);
    if (total)
        add(total, packets, length);
    total = drops.lookup_or_try_init(&dropped, &none);
    if (total)
        add(total, packets, length);
    else
        lose(LOSS_TABLE_FULL, packets, length);
    return 0;
}
