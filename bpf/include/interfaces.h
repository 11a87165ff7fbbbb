/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The interface of a packet, in programs that several interfaces share.
 *
 * If INTERFACES is 1, the dispatcher of each interface writes its number into the control block
 * (bpf/attach/chain.py). Then the kind of link differs from packet to packet, too.
 */
#pragma once

#if INTERFACES
#define INTERFACE(ctx) ((ctx)->cb[4] & 0xffff)
/* Whether another hook of the host has counted the packet. */
#define COUNTED_BEFORE(ctx) ((ctx)->cb[4] >> 16 & 1)
/* Whether the packet starts with the IP header. */
#define LINK_RAW(ctx) ((ctx)->cb[4] >> 17 & 1)
#else
#define INTERFACE(ctx) 0
#define COUNTED_BEFORE(ctx) 0
#if LINK_ETHERNET
#define LINK_RAW(ctx) 0
#else
#define LINK_RAW(ctx) 1
#endif
#endif
