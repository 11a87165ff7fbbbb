/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * DNS by UDP: names, servers, answer codes, and the time until the answer.
 *
 * A query and its answer meet by both ends and the identifier. An answer whose query was not seen,
 * or was seen behind an address translation, counts without a time.
 */
#include "packet.h"
#include "bits.h"

#define DNS 53
#define UDP_HEADER 8
#define DNS_HEADER 12
#define NAME 64 /* bytes of the longest name that is kept whole */
#define ENTRIES 4096
#define ANSWER 0x80 /* of the third byte of the header */
#define NXDOMAIN 3
#define MAPPED 0xffff0000 /* the third word of an IPv4 address in IPv6's form */
#define NS_OF_US 1000

struct question {
    u32 server[4]; /* IPv4 is mapped into IPv6 */
    char name[NAME];
};

struct answers {
    u64 queries, answers, timed;
    u64 mean_us; /* of the last answers: each new one counts an eighth */
    u64 max_us;
    u64 no_such_name; /* code 3 */
    u64 failed;       /* codes other than 0 and 3: the server refused, or could not answer */
};

struct exchange {
    u64 client[2];
    u64 server[2];
    u64 port_and_id;
};

BPF_HASH(questions, struct question, struct answers, ENTRIES);
BPF_TABLE("lru_hash", struct exchange, u64, pending, 4 * ENTRIES);
BPF_PERCPU_ARRAY(scratch, struct question, 1);

/* Copy the name of the question with dots and in lower case; returns whether there is one. */
static __always_inline bool read_name(CONTEXT *ctx, u64 at, struct question *question) {
    u8 next = 0; /* the place of the next length of a label */
    __builtin_memset(question->name, 0, NAME);
    if (at + 1 >= ctx->len || bpf_skb_load_bytes(ctx, at, &next, 1))
        return false;
    u64 size = ctx->len - at - 1;
    if (size > NAME)
        size = NAME;
    size = opaque(size);
    /* Signed: verifiers before 6.8 see no bound in a comparison with 0. */
    if ((s64)size < 1 || bpf_skb_load_bytes(ctx, at + 1, question->name, size))
        return false;
    /* Without a branch: the verifier would follow both sides of each, in each round. */
    u64 going = any_of(next), end = next;
    for (u64 i = 0; i < NAME; i++) {
        u64 byte = (u8)question->name[i], at_length = any_of(end ^ i) ^ 1;
        u64 is_upper = opaque(~(byte - 'A') & (byte - 'Z' - 1)) >> 63;
        going &= any_of(byte) | (at_length ^ 1);
        end += at_length * (1 + byte);
        byte += is_upper * ('a' - 'A');
        question->name[i] = (byte + at_length * ('.' - byte)) * going;
    }
    return true;
}

/* An address as IPv6 has it: IPv4 is mapped. */
static __always_inline void set_address(u32 *words, u64 *address, u64 version) {
    if (version == 4) {
        words[2] = MAPPED;
        words[3] = address[0];
        return;
    }
    words[0] = address[0], words[1] = address[0] >> 32;
    words[2] = address[1], words[3] = address[1] >> 32;
}

int dns(CONTEXT *ctx) {
    struct packet packet = {};
    u8 header[4] = {};
    if (parse_packet(ctx, &packet) != PARSED || is_later_fragment(&packet) ||
        PROTOCOL(&packet.key) != IPPROTO_UDP)
        return VERDICT_PASS;
    bool answer = SOURCE_PORT(&packet.key) == bpf_htons(DNS);
    if (!answer && DESTINATION_PORT(&packet.key) != bpf_htons(DNS))
        return VERDICT_PASS;
    u64 at = packet.transport_at + UDP_HEADER;
    u32 zero = 0;
    struct question *question = scratch.lookup(&zero);
    if (!question || bpf_skb_load_bytes(ctx, at, header, sizeof(header)) ||
        !(header[2] & ANSWER) != !answer)
        return VERDICT_PASS;

    struct exchange exchange = {};
    u64 *client = answer ? packet.key.destination : packet.key.source;
    u64 *server = answer ? packet.key.source : packet.key.destination;
    exchange.client[0] = client[0], exchange.client[1] = client[1];
    exchange.server[0] = server[0], exchange.server[1] = server[1];
    __builtin_memset(question->server, 0, sizeof(question->server));
    set_address(question->server, server, VERSION(&packet.key));
    u64 port = answer ? DESTINATION_PORT(&packet.key) : SOURCE_PORT(&packet.key);
    exchange.port_and_id = port << 16 | (u64)header[0] << 8 | header[1];
    if (!read_name(ctx, at + DNS_HEADER, question))
        return VERDICT_PASS;

    struct answers none = {}, *found = questions.lookup_or_try_init(question, &none);
    if (!found) {
        lose(LOSS_TABLE_FULL, 1, ctx->len);
        return VERDICT_PASS;
    }
    u64 now = bpf_ktime_get_ns();
    if (!answer) {
        lock_xadd(&found->queries, 1);
        pending.update(&exchange, &now);
        return VERDICT_PASS;
    }
    lock_xadd(&found->answers, 1);
    u32 code = header[3] & 15;
    if (code == NXDOMAIN)
        lock_xadd(&found->no_such_name, 1);
    else if (code)
        lock_xadd(&found->failed, 1);
    u64 *asked = pending.lookup(&exchange);
    if (asked) {
        u64 took = (now - *asked) / NS_OF_US;
        /* Answers of two CPUs at once may lose one of the two in the mean. */
        found->mean_us = found->timed ? found->mean_us - found->mean_us / 8 + took / 8 : took;
        if (took > found->max_us)
            found->max_us = took;
        lock_xadd(&found->timed, 1);
        pending.delete(&exchange);
    }
    return VERDICT_PASS;
}
