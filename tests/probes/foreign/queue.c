#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

struct event { u32 len; u8 proto; u8 tos; };
BPF_QUEUE(events, struct event, 1024);
BPF_STACK(lengths, u32, 1024);

int prog(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    if ((void *)(ip + 1) > end || ip->version != 4)
        return XDP_PASS;
    struct event e = { .len = end - data, .proto = ip->protocol, .tos = ip->tos };
    events.push(&e, BPF_EXIST);
    lengths.push(&e.len, 0);
    return XDP_PASS;
}
