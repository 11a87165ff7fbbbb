/* User space puts the stages into the array: each packet goes from program to program. */
#include <uapi/linux/if_ether.h>
#include <uapi/linux/ip.h>

BPF_PROG_ARRAY(stages, 4);
BPF_HASH(by_protocol, u8, u64, 256);
BPF_ARRAY(others, u64, 1);

enum { STAGE_IP = 1, STAGE_OTHER = 3 };

int classify(struct xdp_md *ctx)
{
	struct ethhdr *eth = (void *)(long)ctx->data;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	stages.call(ctx, eth->h_proto == htons(ETH_P_IP) ? STAGE_IP : STAGE_OTHER);
	return XDP_DROP;
}

int count_ip(struct xdp_md *ctx)
{
	struct iphdr *iph = (void *)(long)ctx->data + sizeof(struct ethhdr);

	if ((void *)(iph + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	u8 protocol = iph->protocol;
	by_protocol.increment(protocol);
	return XDP_PASS;
}

int count_other(struct xdp_md *ctx)
{
	others.increment(0);
	return XDP_PASS;
}
