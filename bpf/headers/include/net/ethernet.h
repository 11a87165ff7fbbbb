/* The C library's names of linux/if_ether.h. */
#pragma once

#include <linux/if_ether.h>

#define ETHER_ADDR_LEN ETH_ALEN
#define ETHER_HDR_LEN ETH_HLEN
#define ETHERTYPE_IP ETH_P_IP
#define ETHERTYPE_ARP ETH_P_ARP
#define ETHERTYPE_VLAN ETH_P_8021Q
#define ETHERTYPE_IPV6 ETH_P_IPV6

struct ether_header {
    __u8 ether_dhost[ETH_ALEN];
    __u8 ether_shost[ETH_ALEN];
    __be16 ether_type;
} __packed;
