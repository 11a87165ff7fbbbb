/* The C library's name of both IP versions' addresses and protocols. */
#ifndef PROBEDECK_NETINET_IN_H
#define PROBEDECK_NETINET_IN_H

#include <linux/in.h>
#include <linux/in6.h>

#endif
