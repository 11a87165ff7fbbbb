#include <linux/if_ether.h>
#include <linux/ipv6.h>

BPF_HASH(by_source, unsigned __int128, u64, 256);
struct pair { struct in6_addr saddr, daddr; };
BPF_HASH(pairs, struct pair);

int prog(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;
    struct ipv6hdr *ip6 = (void *)(eth + 1);
    if ((void *)(ip6 + 1) > (void *)(long)ctx->data_end || eth->h_proto != htons(ETH_P_IPV6))
        return XDP_PASS;
    unsigned __int128 source;
    __builtin_memcpy(&source, &ip6->saddr, sizeof(source));
    by_source.increment(source);
    struct pair p = { ip6->saddr, ip6->daddr };
    pairs.increment(p, ntohs(ip6->payload_len));
    return XDP_PASS;
}
