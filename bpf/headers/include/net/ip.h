/* The kernel's names of the fragment field. */
#pragma once

#include <linux/ip.h>
#include <linux/types.h>

#define IP_CE 0x8000
#define IP_DF 0x4000
#define IP_MF 0x2000
#define IP_OFFSET 0x1FFF

static inline bool ip_is_fragment(const struct iphdr *ip) {
    return (ip->frag_off & htons(IP_MF | IP_OFFSET)) != 0;
}
