#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

BPF_TABLE("lru_hash", u32, u64, last_len, 4096);
BPF_TABLE("lru_percpu_hash", u32, u64, pkts, 4096);

int prog(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    if ((void *)(ip + 1) > end || ip->version != 4)
        return XDP_PASS;
    u32 src = ntohl(ip->saddr);
    u64 len = end - data, zero = 0, *n;
    last_len.update(&src, &len);
    n = pkts.lookup_or_init(&src, &zero);
    if (n) ++*n;
    return XDP_PASS;
}
