/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* A probe of a hundred lines, as an operator would write one: what bench/compile.py compiles. */
#include <uapi/linux/bpf.h>
#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>
#include <uapi/linux/ip.h>
#include <uapi/linux/tcp.h>
#include <uapi/linux/udp.h>

struct flow {
    u32 source;
    u32 destination;
    u16 source_port;
    u16 destination_port;
    u32 protocol;
};

struct counters {
    u64 packets;
    u64 bytes;
    u64 first;
    u64 last;
};

BPF_TABLE("percpu_hash", struct flow, struct counters, flows, 10240);
BPF_PERCPU_ARRAY(protocols, u64, 256);
BPF_PERCPU_ARRAY(sizes, u64, 16);
BPF_HASH(half_open, struct flow, u64, 10240);

static inline int
ports(void *transport, void *end, struct flow *flow)
{
    if (flow->protocol == IPPROTO_TCP) {
        struct tcphdr *tcp = transport;
        if ((void *)(tcp + 1) > end)
            return -1;
        flow->source_port = tcp->source;
        flow->destination_port = tcp->dest;
        u64 now = bpf_ktime_get_ns();
        if (tcp->syn && !tcp->ack)
            half_open.update(flow, &now);
        else if (tcp->ack && !tcp->syn)
            half_open.delete(flow);
    } else if (flow->protocol == IPPROTO_UDP) {
        struct udphdr *udp = transport;
        if ((void *)(udp + 1) > end)
            return -1;
        flow->source_port = udp->source;
        flow->destination_port = udp->dest;
    }
    return 0;
}

static inline void
count(struct flow *flow, u64 bytes)
{
    u64 now = bpf_ktime_get_ns();
    struct counters *seen = flows.lookup(flow);
    if (seen) {
        seen->packets++;
        seen->bytes += bytes;
        seen->last = now;
        return;
    }
    struct counters fresh = {1, bytes, now, now};
    flows.update(flow, &fresh);
}

int
monitor(struct xdp_md *ctx)
{
    void *data = (void *)(long)ctx->data;
    void *end = (void *)(long)ctx->data_end;
    u64 bytes = end - data;

    struct ethhdr *ethernet = data;
    if ((void *)(ethernet + 1) > end)
        return XDP_PASS;
    if (ethernet->h_proto != bpf_htons(ETH_P_IP))
        return XDP_PASS;
    struct iphdr *ip = (void *)(ethernet + 1);
    if ((void *)(ip + 1) > end)
        return XDP_PASS;

    int protocol = ip->protocol;
    u64 *packets = protocols.lookup(&protocol);
    if (packets)
        (*packets)++;
    int bucket = bytes >> 7 & 15;
    u64 *sized = sizes.lookup(&bucket);
    if (sized)
        (*sized)++;

    struct flow flow = {};
    flow.source = ip->saddr;
    flow.destination = ip->daddr;
    flow.protocol = ip->protocol;
    if (ports((void *)ip + ip->ihl * 4, end, &flow) == 0)
        count(&flow, bytes);
    return XDP_PASS;
}
