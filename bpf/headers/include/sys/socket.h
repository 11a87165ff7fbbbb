/* What linux/if.h, and so linux/icmp.h and linux/if_arp.h, take from the C library. */
#pragma once

#include <linux/socket.h>
#include <linux/types.h>

#define AF_UNSPEC 0
#define AF_UNIX 1
#define AF_INET 2
#define AF_INET6 10
#define AF_PACKET 17

typedef __kernel_sa_family_t sa_family_t;
typedef unsigned int socklen_t;

struct sockaddr {
    sa_family_t sa_family;
    char sa_data[14];
};
