/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The marks by which every host recognises packets of path tracing on the wire, its own and those
 * of others (probes/path/mark.h has the secret ones).
 *
 * UDP and ICMP echo, also the reply, begin their payload with MAGIC, from probes/path/marks.py. TCP
 * has an urgent pointer without URG, no option and no payload: TCP itself sends no such packet.
 */
#pragma once

#include "tcp_flags.h"

#define MAGIC_AT 8 /* offset in UDP and ICMP */

/* `header`: the words of a TCP header from offset 12 on; `payload`: bytes behind the header. */
static __always_inline bool is_tcp_of_tracing(const u32 header[2], u64 payload) {
    u32 length = header[0] >> 4 & 15, flags = header[0] >> 8, urgent = header[1] >> 16;
    return urgent && !(flags & TCP_URG) && length == 5 && !payload;
}
