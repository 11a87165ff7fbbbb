#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/in.h>
#include <linux/tcp.h>
#include <linux/udp.h>

/*
 * BPF_HASH(conns_v1, u32, u64);   was too small
 * BPF_TABLE("array", u32, u64, nothing, 1);
 */
// BPF_HASH(half_open, u64, u64);
BPF_HASH(half_open, u32, u64);
BPF_HASH(first_seen, u32, u64);	// see "BPF_HASH(finished)"
BPF_HASH(finished, u32, u64);

static inline int flag(struct tcphdr *tcp, u8 bits) { return ((u8 *)tcp)[13] & bits; }

int conns(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
    struct iphdr *ip = data + sizeof(struct ethhdr);
    struct tcphdr *tcp = (void *)(ip + 1);
    if ((void *)(tcp + 1) > end || ip->protocol != IPPROTO_TCP) return XDP_PASS;
    u32 who = (u32)ntohs(tcp->source) << 16 | ntohs(tcp->dest);
    u64 len = end - data, one = 1;
    if (flag(tcp, 2)) half_open.atomic_increment(who);
    first_seen.insert(&who, &len);
    if (flag(tcp, 1)) {
        half_open.delete(&who);
        u64 *n = finished.lookup(&who);
        if (n) (*n)++; else finished.update(&who, &one);
    }
    return XDP_PASS;
}
