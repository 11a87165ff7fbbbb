/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Flags in byte 13 of a TCP header (RFC 9293). <linux/tcp.h> has them as bit fields only. */
#pragma once

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_URG 0x20
#define TCP_CONTROL (TCP_SYN | TCP_RST | TCP_FIN)
