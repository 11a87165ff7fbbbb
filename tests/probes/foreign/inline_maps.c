#include <linux/if_ether.h>

enum { RX, IP, OTHER, N };
BPF_F_TABLE("array", int, u64, counters, N, BPF_F_MMAPABLE);
BPF_HASH(types, __be16, u32, 64);

static inline void
count(int which)
{
    u64 *c = counters.lookup(&which);

    if (c != NULL)
        __sync_fetch_and_add(c, 1);
}

static __always_inline u32 count_type(__be16 type)
{
    u32 one = 1, *n = types.lookup_or_init(&type, &one);
    return n ? (*n)++ : 0;
}

int
main_prog(struct xdp_md *ctx)
{
    struct ethhdr *eth = (void *)(long)ctx->data;

    count(RX);
    if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
        return XDP_DROP;
    count(eth->h_proto == htons(ETH_P_IP) ? IP : OTHER);
    count_type(eth->h_proto);
    return XDP_PASS;
}
