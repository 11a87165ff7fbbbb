// SPDX-License-Identifier: (LGPL-2.1 OR BSD-2-Clause)
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>

#define ETH_P_IP 0x0800

#ifdef __BCC__
BPF_HASH(protocols, __u8, __u64, 256);
#endif
BPF_HASH(proto_bytes, __u8, __u64, 256);

static __noinline bool is_ip(struct ethhdr *eth)
{
	return eth->h_proto == bpf_htons(ETH_P_IP);
}

SEC("xdp")
int count_protocols(struct xdp_md *ctx)
{
	void *data_end = (void *)(long)ctx->data_end;
	void *data = (void *)(long)ctx->data;
	struct ethhdr *eth = data;
	struct iphdr *iph = data + sizeof(*eth);

	if (data + sizeof(*eth) + sizeof(*iph) > data_end || !is_ip(eth))
		return XDP_PASS;
	proto_bytes.increment(iph->protocol, data_end - data);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
