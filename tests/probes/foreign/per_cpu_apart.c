BPF_PERCPU_ARRAY(counts, u64, 2);
BPF_PERCPU_HASH(lengths, u32, u64);
static int unused(void) { return 1; }
static inline u32 also_unused(struct xdp_md *c) { return c->data; }

__section("xdp") int prog(struct xdp_md *ctx)
{
    int which = 1;
    u32 len = ctx->data_end - ctx->data;
    u64 zero = 0, *n;
    counts.increment(which);
    if ((n = lengths.lookup_or_init(&len, &zero)))
        ++*n;
    return XDP_PASS;
}
