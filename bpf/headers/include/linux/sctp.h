/* The packet's layout, as in the kernel's own header; the other one is about sockets. */
#pragma once

#include <linux/types.h>

struct sctphdr {
    __be16 source;
    __be16 dest;
    __be32 vtag;
    __le32 checksum;
};

struct sctp_chunkhdr {
    __u8 type;
    __u8 flags;
    __be16 length;
};
