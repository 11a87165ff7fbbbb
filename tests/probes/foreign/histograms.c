#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

typedef struct proto_key {
    u64 proto;
    u64 slot;
} proto_key_t;

BPF_HISTOGRAM(dist);
BPF_HISTOGRAM(by_proto, proto_key_t, 512);

int do_count(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    dist.increment(bpf_log2l(end - data));
    if ((void *)(ip + 1) > end || ip->version != 4)
        return XDP_PASS;
    proto_key_t key = { .proto = ip->protocol, .slot = bpf_log2l(end - data) };
    by_proto.atomic_increment(key);
    return XDP_PASS;
}
