/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The names that dechainy puts before the data plane of a plugin: `prelude = "dechainy.h"`.
 *
 * The source has handler(), which gets the context and a packet's metadata. A source that brings
 * its own program (internal_handler, handle_rx) gets the names, too. Messages of dp_log() are in
 * the queue log_buffer, and the metadata of packets for the controller in the queue control_plane.
 */
#pragma once

#include "framework.h"

#ifdef HOOK_XDP
#define XDP 1
#define BACK_TX XDP_TX
#else
#define XDP 0
#endif
#define PASS VERDICT_PASS
#define DROP VERDICT_DROP
#define RX_OK VERDICT_PASS
#define INGRESS (!FRAMEWORK_EGRESS)
#define MAX_PROGRAMS_PER_HOOK 32
#define ECHO_REPLY 0
#define ECHO_REQUEST 8
/* The levels of Python's logging. */
#define CRITICAL 50
#define ERROR 40
#define WARNING 30
#define INFO 20
#define DEBUG 10
#ifndef LOG_LEVEL
#define LOG_LEVEL INFO
#endif
#ifndef PROGRAM_ID
#define PROGRAM_ID 1
#endif
#ifndef PLUGIN_ID
#define PLUGIN_ID 0
#endif
#ifndef PROBE_ID
#define PROBE_ID 0
#endif

#include <uapi/linux/if_ether.h>
#ifndef DEFINES_iphdr
#include <uapi/linux/ip.h>
#endif
#ifndef DEFINES_tcphdr
#include <uapi/linux/tcp.h>
#endif
#ifndef DEFINES_udphdr
#include <uapi/linux/udp.h>
#endif
#ifndef DEFINES_icmphdr
#include <uapi/linux/icmp.h>
#endif
#ifndef IPPROTO_TCP
#define IPPROTO_ICMP 1
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#endif

#ifndef DEFINES_eth_hdr
struct eth_hdr {
    __be64 dst : 48;
    __be64 src : 48;
    __be16 proto;
} __attribute__((packed));
#endif

#ifndef DEFINES_lpm_key
struct lpm_key {
    u32 netmask_len;
    u32 ip; /* in network order */
} __attribute__((packed));
#endif

#ifndef DEFINES_pkt_metadata
struct pkt_metadata {
    u32 ifindex;
    u32 length;
    u8 ingress; /* 0: egress */
    u8 xdp;     /* 0: TC */
    u16 program_id;
    u16 plugin_id;
    u16 probe_id;
} __attribute__((packed));
#endif

BPF_QUEUE(control_plane, struct pkt_metadata, 1024);

static __always_inline int pkt_to_controller(struct CTXTYPE *ctx, struct pkt_metadata *md) {
    int refused = (long)control_plane.push(md, 0);
    if (refused)
        lose(LOSS_TABLE_FULL, 1, md->length);
    return refused;
}

/* As in dechainy, a level passes if its number is at most LOG_LEVEL. */
#define dp_log(_level, _message, ...)                                                              \
    do {                                                                                           \
        if ((_level) <= LOG_LEVEL) {                                                               \
            struct log_entry _entry = {0, _level, {__VA_ARGS__}, _message};                        \
            write_log(&_entry);                                                                    \
        }                                                                                          \
    } while (0)

static __always_inline u64 time_epoch(u64 stamp) {
    return stamp ? stamp : EPOCH_BASE + bpf_ktime_get_ns();
}
#ifdef HOOK_XDP
#define get_time_epoch(...) time_epoch(0)
#else
#define get_time_epoch(...) time_epoch(ctx->tstamp)
#endif

/* Number of zeros behind the lowest 1 of `x`; 0 for 0. */
static __always_inline int first_bit_set_pos(u64 x) {
    int at = 0;
    if (!x)
        return 0;
    for (int step = 32; step; step >>= 1)
        if (!(x & ((1ULL << step) - 1))) {
            x >>= step;
            at += step;
        }
    return at;
}

/* `return REDIRECT(eth1);` needs the interface's index: define = { IFINDEX_eth1 = 3 }. */
#define REDIRECT(_name) bpf_redirect(IFINDEX_##_name, 0)

/* Attributes of a map are keys of its metric: SWAP is snapshot, EMPTY is init, EXPORT is export. */
#define __attributes__(...)

/* probedeck chains programs, so this array stays empty. */
#ifdef EXTERN_PROGRAM_TYPE_next_MODE
BPF_PROG_ARRAY(PROGRAM_TYPE_next_MODE, MAX_PROGRAMS_PER_HOOK);
#endif

static __always_inline int handler(struct CTXTYPE *ctx, struct pkt_metadata *md);

#ifndef DEFINES_handler
static __always_inline int handler(struct CTXTYPE *ctx, struct pkt_metadata *md) {
    return PASS;
}
#elif !defined(DEFINES_internal_handler)
int internal_handler(struct CTXTYPE *ctx) {
    struct pkt_metadata md = {
        .ifindex = incoming_interface(ctx),
        .length = frame_length(ctx),
        .ingress = INGRESS,
        .xdp = XDP,
        .program_id = PROGRAM_ID,
        .plugin_id = PLUGIN_ID,
        .probe_id = PROBE_ID,
    };
    return handler(ctx, &md);
}
#endif
