/* Names of libxdp's header of this name: bytes of a packet at an offset, by the kernel's helpers.
 */
#pragma once

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

static __always_inline int xdp_load_bytes(struct xdp_md *ctx, __u64 offset, void *to, __u64 size) {
    return bpf_xdp_load_bytes(ctx, offset, to, size);
}

static __always_inline int xdp_store_bytes(struct xdp_md *ctx, __u64 offset, const void *from,
                                           __u64 size, __u64 flags) {
    (void)flags;
    return bpf_xdp_store_bytes(ctx, offset, (void *)from, size);
}
