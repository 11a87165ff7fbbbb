/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Packets by size: slot n counts packets of 2^(n-1) to 2^n - 1 bytes. Plain bcc, for TC. */
#include <uapi/linux/bpf.h>
#include <uapi/linux/pkt_cls.h>

BPF_HISTOGRAM(sizes, int, 32);

int measure(struct __sk_buff *skb) {
    sizes.atomic_increment(bpf_log2l(skb->len));
    return TC_ACT_OK;
}
