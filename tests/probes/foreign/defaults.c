BPF_HASH(by_length);

int xdp_count(struct xdp_md *ctx)
{
    u64 len = ctx->data_end - ctx->data;

    by_length.increment(len);
    return XDP_PASS;
}
