BPF_PROG_ARRAY(jump_table, 8);
BPF_ARRAY(fell_through, u64, 1);

int dispatch(struct xdp_md *ctx)
{
    int zero = 0;
    jump_table.call(ctx, 3);    /* nobody is there */
    fell_through.increment(zero);
    return XDP_PASS;
}
