/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Heads of the packets that tell names of addresses: DNS answers by UDP, and the first segment of
 * TLS connections (ClientHello). User space parses them, see probes/names/messages.py.
 *
 * The queue bounds the work of user space: packets beyond it count as filtered, which is no alarm.
 * Every packet passes.
 */
#include "packet.h"
#include "bits.h"

#define HEAD 1536 /* bytes: with post-quantum keys, the name is often in the second half */
#define LEAST 12  /* bytes of a DNS header; a ClientHello has more */
#define ENTRIES 256

#define DNS 53
#define UDP_HEADER 8
#define TCP_DATA_OFFSET 12
#define TLS_START 6 /* bytes of the record and of the handshake that tell a ClientHello */
#define TLS_HANDSHAKE 22
#define TLS_CLIENT_HELLO 1

enum head_kind { HEAD_DNS, HEAD_TLS };

struct head {
    u64 time; /* CLOCK_MONOTONIC */
    u64 destination[2];
    u32 size; /* of `bytes` */
    u16 version;
    u16 kind;
    u8 bytes[HEAD];
};

BPF_QUEUE(heads, struct head, ENTRIES);
BPF_PERCPU_ARRAY(scratch, struct head, 1);

/* The offset of a ClientHello in the frame; 0: none begins in this segment. */
static __always_inline u64 find_client_hello(CONTEXT *ctx, struct packet *packet) {
    u8 words, start[TLS_START];
    if (bpf_skb_load_bytes(ctx, packet->transport_at + TCP_DATA_OFFSET, &words, 1))
        return 0;
    u64 at = packet->transport_at + (words >> 4) * 4;
    if (bpf_skb_load_bytes(ctx, at, start, sizeof(start)))
        return 0;
    bool hello = start[0] == TLS_HANDSHAKE && start[1] == 3 && start[5] == TLS_CLIENT_HELLO;
    return hello ? at : 0;
}

int names(CONTEXT *ctx) {
    struct packet packet = {};
    if (parse_packet(ctx, &packet) != PARSED || is_later_fragment(&packet))
        return VERDICT_PASS;
    u64 protocol = PROTOCOL(&packet.key), at = 0;
    bool dns = protocol == IPPROTO_UDP && SOURCE_PORT(&packet.key) == bpf_htons(DNS);
    if (dns)
        at = packet.transport_at + UDP_HEADER;
    else if (protocol == IPPROTO_TCP)
        at = find_client_hello(ctx, &packet);
    if (!at || at >= ctx->len)
        return VERDICT_PASS;

    u32 zero = 0;
    struct head *head = scratch.lookup(&zero);
    if (!head)
        return VERDICT_PASS;
    u64 size = ctx->len - at;
    if (size > HEAD)
        size = HEAD;
    /* Verifiers before 6.8 learn nothing of a size that is not 0, but of one that is not smaller.
     */
    size = opaque(size);
    if (size < LEAST || bpf_skb_load_bytes(ctx, at, head->bytes, size))
        return VERDICT_PASS;
    head->time = bpf_ktime_get_ns();
    head->destination[0] = packet.key.destination[0];
    head->destination[1] = packet.key.destination[1];
    head->size = size;
    head->version = VERSION(&packet.key);
    head->kind = dns ? HEAD_DNS : HEAD_TLS;
    if (heads.push(head, 0))
        lose(LOSS_FILTERED, 1, ctx->len);
    return VERDICT_PASS;
}
