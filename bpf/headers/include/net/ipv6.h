/* The kernel's names of the headers that may follow IPv6's. */
#pragma once

#include <linux/in6.h>
#include <linux/ipv6.h>
#include <linux/types.h>

#define NEXTHDR_HOP 0
#define NEXTHDR_IPV4 4
#define NEXTHDR_TCP 6
#define NEXTHDR_UDP 17
#define NEXTHDR_IPV6 41
#define NEXTHDR_ROUTING 43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_GRE 47
#define NEXTHDR_ESP 50
#define NEXTHDR_AUTH 51
#define NEXTHDR_ICMP 58
#define NEXTHDR_NONE 59
#define NEXTHDR_DEST 60
#define NEXTHDR_SCTP 132
#define NEXTHDR_MOBILITY 135
#define NEXTHDR_MAX 255

#define IP6_MF 0x0001
#define IP6_OFFSET 0xFFF8

struct frag_hdr {
    __u8 nexthdr;
    __u8 reserved;
    __be16 frag_off;
    __be32 identification;
};
