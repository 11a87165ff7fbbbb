/* The kernel's tests of MAC addresses. */
#pragma once

#include <linux/if_ether.h>
#include <linux/types.h>

static inline bool is_multicast_ether_addr(const u8 *address) {
    return address[0] & 1;
}

static inline bool is_broadcast_ether_addr(const u8 *address) {
    return (address[0] & address[1] & address[2] & address[3] & address[4] & address[5]) == 0xff;
}

static inline bool is_zero_ether_addr(const u8 *address) {
    return !(address[0] | address[1] | address[2] | address[3] | address[4] | address[5]);
}

static inline bool ether_addr_equal(const u8 *a, const u8 *b) {
    return !((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]) |
             (a[5] ^ b[5]));
}
