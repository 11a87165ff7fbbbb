/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Common to every probe of packets: its hook, and the sizes of packets.
 *
 * A probe is compiled for one hook: HOOK_XDP, HOOK_TC_INGRESS or HOOK_TC_EGRESS is defined.
 */
#pragma once

#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>
#include "interfaces.h"
#include "losses.h"
#include "segment.h"

#ifdef HOOK_XDP
#define CONTEXT struct xdp_md
#define VERDICT_PASS XDP_PASS
#define VERDICT_DROP XDP_DROP
#else
#define CONTEXT struct __sk_buff
#define VERDICT_PASS TC_ACT_UNSPEC /* the next program of the hook decides: TCX_NEXT */
#define VERDICT_DROP TC_ACT_SHOT
#endif

/*
 * Packets and bytes of `ctx` on the wire. A large segment is several packets, and each has its
 * headers. A VLAN tag that the NIC takes off or puts in is part of the frame. XDP does not see such
 * a tag. A large segment comes to XDP only in generic mode, and counts as one packet.
 */
static __always_inline struct wire_size size_on_wire(CONTEXT *ctx) {
#ifdef HOOK_XDP
    struct wire_size size = {1, ctx->data_end - ctx->data};
#else
    struct wire_size size = {1, ctx->len};
    /* vlan_proto may be of a tag that has been removed, but vlan_present costs more. */
    if (unlikely(ctx->gso_size | ctx->vlan_proto)) {
        if (ctx->gso_size)
            size = segment_size(ctx);
        if (ctx->vlan_present)
            size.bytes += size.packets * VLAN_TAG_SIZE;
    }
#endif
    return size;
}

static __always_inline u64 packets_of(CONTEXT *ctx) {
    return size_on_wire(ctx).packets;
}

static __always_inline u64 bytes_of(CONTEXT *ctx) {
    return size_on_wire(ctx).bytes;
}
