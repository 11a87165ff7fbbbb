// SPDX-License-Identifier: GPL-2.0
/* Counts by verdict in the last step, in records whose members have two names each. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <xdp/parsing_helpers.h>

struct stats_record {
	union { __u64 packets; __u64 rx_packets; };
	union { __u64 bytes; __u64 rx_bytes; };
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, XDP_REDIRECT + 1);
	__type(key, __u32);
	__type(value, struct stats_record);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} verdict_stats SEC(".maps");

static __always_inline __u32 stats_record_action(struct xdp_md *ctx, __u32 action)
{
	struct stats_record *rec;

	if (action > XDP_REDIRECT)
		return XDP_ABORTED;
	rec = bpf_map_lookup_elem(&verdict_stats, &action);
	if (!rec)
		return XDP_ABORTED;
	rec->packets++;
	rec->bytes += ctx->data_end - ctx->data;
	return action;
}

SEC("xdp_filter")
int filter_func(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct hdr_cursor nh = { .pos = (void *)(long)ctx->data };
	__u32 action = XDP_PASS;
	struct ethhdr *eth;
	struct iphdr *iph;

	if (parse_ethhdr(&nh, end, &eth) == bpf_htons(ETH_P_IP) &&
	    parse_iphdr(&nh, end, &iph) == IPPROTO_TCP)
		action = XDP_DROP;
	return stats_record_action(ctx, action);
}

SEC("xdp_pass")
int pass_func(struct xdp_md *ctx)
{
	return stats_record_action(ctx, XDP_PASS);
}

char _license[] SEC("license") = "GPL";
