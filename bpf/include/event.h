/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Common to probes of events, on tracepoints and cgroups.
 *
 * Their programs observe: whatever they return, the kernel goes on as without them. Before the
 * compiler sees a source, probedeck replaces KERNEL_OFFSET(type, member), such as
 * KERNEL_OFFSET(sk_buff, len) or KERNEL_OFFSET(net, ns.inum), by the offset in this kernel.
 */
#pragma once

#include "losses.h"

/* Read `to` from `from`, an address in the kernel; zeros if the address is invalid. */
#define READ_KERNEL(to, from, offset)                                                              \
    bpf_probe_read_kernel(&(to), sizeof(to), (void *)(from) + (offset))
