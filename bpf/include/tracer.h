/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Recognises the packets of path tracing on this host, of this process and of others.
 *
 * Path tracing writes TRACERS into a clone's control block before the clone passes the egress hook
 * again. The finished probe keeps it, so no probe program takes either for an application's packet.
 */
#pragma once

#include "probe.h"

#define TRACERS 0x6b6365646562706fULL /* public: the same in all processes */

static __always_inline bool is_tracers(CONTEXT *ctx) {
#ifdef HOOK_TC_EGRESS
    return *(u64 *)ctx->cb == TRACERS;
#else
    return false; /* the control block does not reach another host, nor this host's ingress */
#endif
}
