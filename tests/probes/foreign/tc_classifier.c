#include <bcc/proto.h>
#include <linux/pkt_cls.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/skbuff.h>

BPF_HASH(by_source, u32, u64);
BPF_HASH(by_protocol, u16, u64);
BPF_HASH(by_byte, u8, u64);

int handle_ingress(struct __sk_buff *skb)
{
    struct iphdr iph;
    u16 protocol = ntohs(skb->protocol);
    u8 byte;

    by_protocol.increment(protocol);
    if (bpf_skb_load_bytes(skb, ETH_HLEN, &iph, sizeof(iph)) || protocol != ETH_P_IP)
        return TC_ACT_OK;
    by_source.increment(iph.saddr, skb->len);
    bpf_skb_pull_data(skb, skb->len);
    void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
    if (data + 24 > data_end)
        return TC_ACT_PIPE;
    byte = *(u8 *)(data + 23);
    by_byte.increment(byte);
    return byte == 17 ? TC_ACT_SHOT : TC_ACT_UNSPEC;
}
