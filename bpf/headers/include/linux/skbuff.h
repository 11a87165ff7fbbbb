/* Packet programs include it by habit; what they get is a struct __sk_buff. */
#ifndef PROBEDECK_LINUX_SKBUFF_H
#define PROBEDECK_LINUX_SKBUFF_H

#include <linux/if_ether.h>
#include <linux/types.h>

struct __attribute__((unavailable("a packet program gets a struct __sk_buff"))) sk_buff;

#endif
