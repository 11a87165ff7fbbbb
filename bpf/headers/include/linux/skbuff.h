/* Packet programs include it by habit; what they get is a struct __sk_buff. */
#pragma once

#include <linux/if_ether.h>
#include <linux/types.h>

struct __attribute__((unavailable("a packet program gets a struct __sk_buff"))) sk_buff;
