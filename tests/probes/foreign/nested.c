#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

struct bounds { u32 least, most; };
struct record {
    u64 hits;
    struct {
        struct bounds len;
        u16 flags;
    } seen;
    u32 by_tos[4];
    u16 tcp[2];
    union {
        __be32 src_ip;
        u8 bytes[4];
    };
};
BPF_HASH(hosts, __be32, struct record, 64);

int prog(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    u32 len = end - data;
    if ((void *)(ip + 1) > end || ip->version != 4)
        return XDP_PASS;
    struct record empty = {}, *r;
    empty.seen.len.least = 0xffff;
    __be32 daddr = ip->daddr;
    r = hosts.lookup_or_try_init(&daddr, &empty);
    if (!r) return XDP_PASS;
    r->hits++;
    if (len < r->seen.len.least) r->seen.len.least = len;
    if (len > r->seen.len.most) r->seen.len.most = len;
    r->seen.flags |= 1 << (ip->protocol & 15);
    r->by_tos[(ip->tos >> 2) & 3]++;
    r->tcp[ip->protocol == IPPROTO_TCP]++;
    r->src_ip = ip->saddr;
    return XDP_PASS;
}
