/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Packets by combination of TCP flags. The slot is the byte of the flags (FIN 1, SYN 2, RST 4, PSH
 * 8, ACK 16, URG 32, ECE 64, CWR 128). Plain bcc: the program needs no header of probedeck.
 */
#include <uapi/linux/bpf.h>
#include <uapi/linux/if_ether.h>
#include <uapi/linux/in.h>
#include <uapi/linux/ip.h>
#include <uapi/linux/tcp.h>

BPF_HISTOGRAM(tcp_flags, int, 256);

int count_flags(struct xdp_md *ctx) {
    void *data = (void *)(long)ctx->data;
    void *data_end = (void *)(long)ctx->data_end;

    struct ethhdr *eth = data;
    if ((void *)(eth + 1) > data_end || eth->h_proto != htons(ETH_P_IP))
        return XDP_PASS;
    struct iphdr *ip = (void *)(eth + 1);
    if ((void *)(ip + 1) > data_end || ip->protocol != IPPROTO_TCP)
        return XDP_PASS;
    if (ip->frag_off & htons(0x1fff))
        return XDP_PASS;
    u8 *tcp = (void *)ip + ip->ihl * 4;
    if ((void *)(tcp + sizeof(struct tcphdr)) > data_end)
        return XDP_PASS;

    tcp_flags.atomic_increment(tcp[13]);
    return XDP_PASS;
}
