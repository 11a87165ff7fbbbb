/* K & R's way, with a name nobody would think of: zählt Pakete — 計數. */
BPF_HASH(sizes, u32, u64)	;
static int size_of(ctx)
	struct xdp_md *ctx;
{
	return ctx->data_end - ctx->data;
}
int
count(struct xdp_md *ctx)
{
	u32	size;
	size = size_of(ctx);
	sizes.increment(size);
	return XDP_PASS;
}