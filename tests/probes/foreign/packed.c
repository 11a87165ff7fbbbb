#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

struct key {
    u8 proto;
    __be16 dport;
    __be32 daddr;
} __attribute__((packed));

typedef struct __attribute__((__packed__)) {
    u8 seen;
    u64 count;
} value_t;

BPF_HASH(services, struct key, value_t, 512);

int prog(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    struct udphdr *udp = (struct udphdr *)(ip + 1);
    if ((void *)(udp + 1) > end || ip->protocol != IPPROTO_UDP)
        return XDP_PASS;
    struct key k = { .proto = ip->protocol, .dport = udp->dest, .daddr = ip->daddr };
    value_t first = { 1, 1 };
    value_t *v = services.lookup(&k);
    if (v) { v->count += 1; }
    else services.insert(&k, &first);
    return XDP_PASS;
}
