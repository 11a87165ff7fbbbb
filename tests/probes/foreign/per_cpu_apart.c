BPF_PERCPU_ARRAY(counts, u64, 2);
BPF_PERCPU_HASH(lengths, u32, u64);
static int unused(void) { return 1; }
static inline u32 also_unused(struct xdp_md *c) { return c->data; }

__section("xdp") int prog(struct xdp_md *ctx)
{
    int which = 1;
    u32 len = ctx->data_end - ctx->data;
    counts.increment(which);
    lengths.increment(len);
    return XDP_PASS;
}
