#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

BPF_PERCPU_ARRAY(verdicts, u64, 5);

int reflect(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    int verdict = XDP_PASS;
    if ((void *)(ip + 1) <= end && ip->version == 4)
        verdict = ip->protocol == IPPROTO_UDP ? XDP_TX : ip->protocol == IPPROTO_TCP ? XDP_DROP : XDP_PASS;
    verdicts.increment(verdict);
    return verdict;
}
