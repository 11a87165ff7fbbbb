BPF_HASH(p, u32, u64); BPF_HASH(pkt, u32, u64); BPF_HASH(pkt_len, u32, u64);
    BPF_HASH ( pkt_len_max , u32 , u64 ) ;

int pkt_p(struct xdp_md *ctx)
{
    u32 pkt_key = 1, len = ctx->data_end - ctx->data;
    u64 pkt_len_max_new = len, *pkt_len_max_old;

    p.increment(pkt_key);
    pkt.increment(len);
    pkt_len.increment(pkt_key, len);
    pkt_len_max_old = pkt_len_max.lookup(&pkt_key);
    if (!pkt_len_max_old || *pkt_len_max_old < len) pkt_len_max.update(&pkt_key, &pkt_len_max_new);
    return XDP_PASS;
}
