// SPDX-License-Identifier: GPL-2.0
/* User space gives the settings before the load, and fills two maps behind it. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/udp.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <stdbool.h>

struct settings {
	__u64 ipv4_mask;
	bool track_tcp;
	bool track_udp;
	__u8 reserved[6];
};

static volatile const struct settings config = {};

struct prefix_stats {
	__u64 last_seen;
	struct {
		__u64 packets;
		__u64 bytes;
	} rx;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__type(key, __u32);
	__type(value, struct prefix_stats);
	__uint(max_entries, 256);
} by_prefix SEC(".maps");

/* Sizes, no types. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(key_size, sizeof(__u16));
	__uint(value_size, sizeof(__u64));
	__uint(max_entries, 8);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u64));
	__uint(max_entries, 1);
} control SEC(".maps");

__u64 hits;
__u32 last_mark;

SEC("tc")
int ingress_settings(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct ethhdr *eth = data;
	struct iphdr *iph = (void *)(eth + 1);
	struct udphdr *udph = (void *)(iph + 1);
	struct prefix_stats *stats, empty = {};
	__u32 prefix, zero = 0;
	__u64 *on = bpf_map_lookup_elem(&control, &zero), *seen;
	__u16 port;

	if (!on || !*on || (void *)(udph + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP))
		return TC_ACT_OK;
	if (!(iph->protocol == IPPROTO_TCP && config.track_tcp) &&
	    !(iph->protocol == IPPROTO_UDP && config.track_udp))
		return TC_ACT_OK;
	prefix = iph->saddr & (__u32)config.ipv4_mask;
	bpf_map_update_elem(&by_prefix, &prefix, &empty, BPF_NOEXIST);
	stats = bpf_map_lookup_elem(&by_prefix, &prefix);
	if (stats) {
		stats->rx.packets++;
		stats->rx.bytes += skb->len;
	}
	port = bpf_ntohs(udph->dest);
	seen = bpf_map_lookup_elem(&ports, &port);
	if (seen)
		hits += *seen;
	return TC_ACT_OK;
}

char __license[] SEC("license") = "Dual BSD/GPL";
