/* The tag's layout, which only the kernel's own header has. */
#pragma once

#include <linux/if_ether.h>
#include <uapi/linux/if_vlan.h>

#define VLAN_HLEN 4
#define VLAN_ETH_HLEN 18
#define VLAN_PRIO_MASK 0xe000
#define VLAN_PRIO_SHIFT 13
#define VLAN_CFI_MASK 0x1000
#define VLAN_VID_MASK 0x0fff
#define VLAN_N_VID 4096

struct vlan_hdr {
    __be16 h_vlan_TCI;
    __be16 h_vlan_encapsulated_proto;
};

struct vlan_ethhdr {
    unsigned char h_dest[ETH_ALEN];
    unsigned char h_source[ETH_ALEN];
    __be16 h_vlan_proto;
    __be16 h_vlan_TCI;
    __be16 h_vlan_encapsulated_proto;
};
