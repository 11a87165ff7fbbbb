#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

struct key_v4 { u32 prefixlen; u32 addr; };
struct key_v6 { u32 prefixlen; u8 data[16]; };
BPF_LPM_TRIE(nets, struct key_v4, u64, 1024);
BPF_F_TABLE("lpm_trie", struct key_v6, u64, nets6, 1024, BPF_F_NO_PREALLOC);

int prog(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    u64 one = 1, *n;
    if ((void *)(eth + 1) > end) return XDP_PASS;
    if (eth->h_proto == htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end) return XDP_PASS;
        struct key_v4 k = { 32, ip->saddr };
        n = nets.lookup(&k);
        if (n) { lock_xadd(n, 1); return XDP_PASS; }
        k.prefixlen = 24;
        k.addr &= htonl(0xffffff00);
        nets.update(&k, &one);
    } else if (eth->h_proto == htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip6 = (void *)(eth + 1);
        if ((void *)(ip6 + 1) > end) return XDP_PASS;
        struct key_v6 k6 = { .prefixlen = 128 };
        __builtin_memcpy(k6.data, &ip6->saddr, sizeof(k6.data));
        n = nets6.lookup(&k6);
        if (n) { lock_xadd(n, 1); return XDP_PASS; }
        k6.prefixlen = 64;
        __builtin_memset(k6.data + 8, 0, 8);
        nets6.update(&k6, &one);
    }
    return XDP_PASS;
}
