/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The names that polycube puts before the data plane of a service: `prelude = "polycube.h"`.
 *
 * The source has handle_rx(). The number of a port is the index of its interface. Messages of
 * pcn_log() are in the queue log_buffer, and the metadata of packets for the controller in the
 * queue controller. VLAN tags and checksums have TC's helpers.
 */
#pragma once

#include "framework.h"
#include <uapi/linux/if_ether.h>

#ifdef HOOK_XDP
#define POLYCUBE_XDP 1
#endif
#define POLYCUBE_PROGRAM_TYPE FRAMEWORK_EGRESS
#define _EPOCH_BASE EPOCH_BASE
#ifndef CUBE_ID
#define CUBE_ID 1
#endif
#define LOG_TRACE 0
#define LOG_DEBUG 1
#define LOG_INFO 2
#define LOG_WARN 3
#define LOG_ERR 4
#define LOG_CRITICAL 5
#define LOG_OFF 6
#ifndef LOG_LEVEL
#define LOG_LEVEL LOG_INFO
#endif
enum { RX_OK, RX_REDIRECT, RX_DROP, RX_RECIRCULATE, RX_ERROR };

struct pkt_metadata {
    u16 cube_id;
    u16 in_port;
    u32 packet_len;
    u32 traffic_class;
    u16 reason; /* for the controller; of a redirected packet: its port */
    u32 md[3];
} __attribute__((packed));

BPF_QUEUE(controller, struct pkt_metadata, 1024);

static __always_inline int handle_rx(struct CTXTYPE *ctx, struct pkt_metadata *md);

static __always_inline int pcn_pkt_drop(struct CTXTYPE *ctx, struct pkt_metadata *md) {
    return RX_DROP;
}

static __always_inline int pcn_pkt_redirect(struct CTXTYPE *ctx, struct pkt_metadata *md,
                                            u32 port) {
    md->reason = port;
    return RX_REDIRECT;
}

/* The service has no network namespace. */
static __always_inline int pcn_pkt_redirect_ns(struct CTXTYPE *ctx, struct pkt_metadata *md,
                                               u32 port) {
    return RX_DROP;
}

static __always_inline int pcn_pkt_controller(struct CTXTYPE *ctx, struct pkt_metadata *md,
                                              u16 reason) {
    md->cube_id = CUBE_ID;
    md->packet_len = frame_length(ctx);
    md->reason = reason;
    int refused = (long)controller.push(md, 0);
    if (refused)
        lose(LOSS_TABLE_FULL, 1, md->packet_len);
    return refused;
}

static __always_inline int pcn_pkt_controller_with_metadata(struct CTXTYPE *ctx,
                                                            struct pkt_metadata *md, u16 reason,
                                                            u32 metadata[3]) {
    md->md[0] = metadata[0];
    md->md[1] = metadata[1];
    md->md[2] = metadata[2];
    return pcn_pkt_controller(ctx, md, reason);
}

#define pcn_log(_ctx, _level, _message, ...)                                                       \
    do {                                                                                           \
        if ((_level) >= LOG_LEVEL) {                                                               \
            struct log_entry _entry = {0, _level, {__VA_ARGS__}, _message};                        \
            write_log(&_entry);                                                                    \
        }                                                                                          \
    } while (0)

static __always_inline u64 pcn_get_time_epoch(void) {
    return EPOCH_BASE + bpf_ktime_get_ns();
}

static __always_inline __wsum pcn_csum_diff(__be32 *from, u32 from_size, __be32 *to, u32 to_size,
                                            __wsum seed) {
    return bpf_csum_diff(from, from_size, to, to_size, seed);
}

#ifndef HOOK_XDP
static __always_inline int pcn_l3_csum_replace(struct CTXTYPE *ctx, u32 offset, u32 from, u32 to,
                                               u32 flags) {
    return bpf_l3_csum_replace(ctx, offset, from, to, flags);
}

static __always_inline int pcn_l4_csum_replace(struct CTXTYPE *ctx, u32 offset, u32 from, u32 to,
                                               u32 flags) {
    return bpf_l4_csum_replace(ctx, offset, from, to, flags);
}

static __always_inline bool pcn_is_vlan_present(struct CTXTYPE *ctx) {
    return ctx->vlan_present;
}

static __always_inline int pcn_get_vlan_id(struct CTXTYPE *ctx) {
    return ctx->vlan_tci & 0xfff;
}

static __always_inline int pcn_get_vlan_proto(struct CTXTYPE *ctx) {
    return ctx->vlan_proto;
}

static __always_inline int pcn_vlan_pop_tag(struct CTXTYPE *ctx) {
    return bpf_skb_vlan_pop(ctx);
}

static __always_inline int pcn_vlan_push_tag(struct CTXTYPE *ctx, u16 protocol, u32 id) {
    return bpf_skb_vlan_push(ctx, protocol, id);
}
#endif

int polycube_rx(struct CTXTYPE *ctx) {
    struct pkt_metadata md = {
        .cube_id = CUBE_ID,
        .in_port = incoming_interface(ctx),
        .packet_len = frame_length(ctx),
    };
#ifndef HOOK_XDP
    md.traffic_class = ctx->mark;
#endif
    int result = handle_rx(ctx, &md);
#ifndef HOOK_XDP
    ctx->mark = md.traffic_class;
#endif
    if (result == RX_OK)
        return VERDICT_PASS;
    return result == RX_REDIRECT ? bpf_redirect(md.reason, 0) : VERDICT_DROP;
}
