/* Packet programs include it by habit; of a socket they see what helpers give. */
#pragma once

#include <linux/in.h>
#include <linux/in6.h>
#include <linux/types.h>
#include <sys/socket.h>

struct __attribute__((unavailable("a packet program gets a struct bpf_sock, by its helpers"))) sock;
