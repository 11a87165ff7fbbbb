/* The kernel's readers of the type of service and the traffic class. */
#pragma once

#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/types.h>

static inline __u8 ipv4_get_dsfield(const struct iphdr *ip) {
    return ip->tos;
}

static inline __u8 ipv6_get_dsfield(const struct ipv6hdr *ip) {
    return ntohs(*(const __be16 *)ip) >> 4;
}
