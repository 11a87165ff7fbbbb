struct cell {
    struct bpf_spin_lock lock;
    u32 packets;
    u64 bytes;
};
BPF_HASH(cells, u32, struct cell, 16);
BPF_ARRAY(total, struct cell, 1);

int prog(struct xdp_md *ctx)
{
    u32 len = ctx->data_end - ctx->data, key = len & 1;
    int zero = 0;
    struct cell empty = {}, *c = cells.lookup(&key), *t = total.lookup(&zero);
    if (!c) {
        cells.insert(&key, &empty);
        c = cells.lookup(&key);
    }
    if (c) {
        bpf_spin_lock(&c->lock);
        c->packets++; c->bytes += len;
        bpf_spin_unlock(&c->lock);
    }
    if (t) {
        bpf_spin_lock(&t->lock);
        t->packets++; t->bytes += len;
        bpf_spin_unlock(&t->lock);
    }
    return XDP_PASS;
}
