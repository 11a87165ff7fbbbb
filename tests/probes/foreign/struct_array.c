#include <linux/if_ether.h>
struct pkt_stats {
    u64 packets;
    u64 bytes;
    s32 balance;
    bool ip;
    char name[8];
};
BPF_ARRAY(per_size, struct pkt_stats, 4);

int prog(struct xdp_md *ctx) {
    u32 len = ctx->data_end - ctx->data, slot = len / 64;
    struct ethhdr *eth = (void *)(long)ctx->data;
    if (slot > 3) slot = 3;
    struct pkt_stats *s = per_size.lookup(&slot);
    if (!s || (void *)(eth + 1) > (void *)(long)ctx->data_end) return XDP_ABORTED;
    s->packets += 1; s->bytes += len;
    s->balance += eth->h_proto == htons(ETH_P_IP) ? 1 : -100;
    s->ip = eth->h_proto == htons(ETH_P_IP);
    __builtin_memcpy(s->name, "size ", 6);
    s->name[5] = '0' + slot;
    return XDP_PASS;
}
