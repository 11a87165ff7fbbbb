#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#ifdef SMALL_BOX
BPF_HASH(flows, u32, u32);
#else
struct five_tuple {
    __be32 src_ip, dst_ip;
    __be16 src_port, dst_port;
    u8 protocol;
};

struct flow_info { u64 pkts; u64 bytes; };

BPF_TABLE("hash",
          struct five_tuple,       /* who, with whom */
          struct flow_info,
          flows,                   // the table
          1024);
#endif

int handle(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct ethhdr *eth = data;
    struct iphdr *ip = data + sizeof(*eth);
    struct udphdr *l4 = (void *)(ip + 1);
    struct five_tuple key = {};

    if ((void *)(ip + 1) > end || eth->h_proto != htons(ETH_P_IP)) return XDP_PASS;
    key.src_ip = ip->saddr; key.dst_ip = ip->daddr; key.protocol = ip->protocol;
    if ((ip->protocol == IPPROTO_TCP || ip->protocol == IPPROTO_UDP) && (void *)(l4 + 1) <= end) {
        key.src_port = l4->source; key.dst_port = l4->dest;
    }
    struct flow_info zero = {}, *info = flows.lookup_or_try_init(&key, &zero);
    if (!info) return XDP_PASS;
    info->pkts++;
    info->bytes += end - data;
    return XDP_PASS;
}
