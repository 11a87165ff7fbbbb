#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

struct datarec {
	__u64 rx_packets;
	__u64 rx_bytes;
	__u32 largest;
};

BPF_PERCPU_HASH(stats, u8, struct datarec, 256);
BPF_PERCPU_ARRAY(total, struct datarec, 1);

static __always_inline void record(struct datarec *rec, __u64 bytes)
{
	rec->rx_packets++;
	rec->rx_bytes += bytes;
	if (bytes > rec->largest)
		rec->largest = bytes;
}

int xdp_stats(struct xdp_md *ctx)
{
	void *data_end = (void *)(long)ctx->data_end;
	void *data     = (void *)(long)ctx->data;
	struct iphdr *iph = data + ETH_HLEN;
	struct datarec *rec, zero = { 0 };
	__u64 bytes = data_end - data;
	int key = 0;

	if ((rec = total.lookup(&key)))
		record(rec, bytes);
	if ((void *)(iph + 1) > data_end || iph->version != 4)
		return XDP_PASS;
	rec = stats.lookup_or_try_init(&iph->protocol, &zero);
	if (rec)
		record(rec, bytes);
	return XDP_PASS;
}
