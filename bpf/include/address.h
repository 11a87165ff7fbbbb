/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* One column for the addresses of both IP versions. */
#pragma once

#include "packet.h"

/* An address of a flow key, network order; IPv4 as ::ffff:192.0.2.1 (RFC 4291, 2.5.5.2). */
static __always_inline void write_address(u64 *to, u64 *address, u64 version) {
    to[0] = version == 4 ? 0 : address[0];
    to[1] = version == 4 ? address[0] << 32 | 0xffff0000 : address[1];
}
