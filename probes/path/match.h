/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Finds the probe that an ICMP message answers.
 *
 * If a quote has a probe's marks (mark.h), changes of its other fields are recorded. Otherwise, and
 * if the router quotes 8 bytes of the transport header, all fields must be the probe's: addresses,
 * ports, identification, length, and TCP's sequence number. An application's own packet may share
 * the IPv4 identification, but not all of these.
 */
#ifndef MATCH_H
#define MATCH_H

#include "mark.h"
#include "path.h"
#include "tcp_flags.h"

/* Offset of an extension whose sender does not state it (RFC 4884, section 5.5). */
#define OLD_EXTENSION_AT 128
#define WORD 4
struct icmp {
    u8 type;
    u8 code;
    u16 checksum;
    u8 quoted_words_v6; /* RFC 4884: in 8 bytes */
    u8 quoted_words;    /* in 4 bytes */
    u16 unused;
};

/* Bits of Altered in records.py. */
#define ALTERED_IDENTIFICATION 1
#define ALTERED_LENGTH 2
#define ALTERED_SOURCE 4
#define ALTERED_SEQUENCE 8
#define ALTERED_CHECKSUM 16

/* How a message names a probe. */
enum evidence {
    NAMED_BY_IDENTIFICATION,
    NAMED_BY_URGENT,
    NAMED_BY_MARK,
};

/* To whom a message belongs. */
enum owner {
    OF_HOST,
    OF_PROBE,
    OF_FOREIGN_PROBE, /* or of user space, which sends packets for path tracing, too */
};

/* A message's quoted fields, and its sender. */
struct answer {
    struct address to; /* the quoted destination */
    u64 source[2];
    u64 responder[2];
    u64 now;
    struct icmp *icmp;
    void *end;        /* of the linear bytes */
    u32 *transport;   /* the quoted header */
    u32 quote_length; /* up to the extension; 0 if its sender does not say */
    s32 length;       /* of the ICMP payload, from the IP header */
    u32 bytes;        /* of the message, from its IP header on */
    u32 mtu;          /* if a packet was too big */
    u32 ports;
    u32 word;
    u32 acknowledgement;
    u16 has_acknowledgement;
    u16 sequence;
    u16 identification;
    u16 packet_length;
    u16 checksum;
    u16 has_checksum;
    u8 version;
    u8 evidence;
    u8 protocol;
    u8 ttl;
    u8 quoted_ttl;
    u8 quoted_tos;
};

/* Copy the part of an extension that the packet has, word by word: its length varies. */
static __always_inline void take_extension(struct answer *answer, struct slot *slot) {
    u64 offset = answer->quote_length ? answer->quote_length : OLD_EXTENSION_AT;
    asm volatile("%0 &= 0x7ff" : "+r"(offset)); /* 255 * 8 at most, which the verifier forgets */
    s32 length = answer->length - (s32)offset;
    u8 *extension = (u8 *)(answer->icmp + 1) + offset;
    slot->extension_size = 0;
#pragma unroll
    for (s32 i = 0; i < EXTENSION_SIZE; i += WORD) {
        if (i + WORD > length || (void *)(extension + i + WORD) > answer->end)
            break;
        *(u32 *)(slot->extension + i) = *(u32 *)(extension + i);
        slot->extension_size = i + WORD;
    }
}

/* Whether two checksums are the same number: both 0 and 0xffff are zero. */
static __always_inline bool same_checksum(u16 a, u16 b) {
    return a == b || ((u16)(a + 1) <= 1 && (u16)(b + 1) <= 1);
}

/* The fields of the probe that the quote has otherwise. */
static __always_inline u32 changes(struct answer *answer, struct slot *slot) {
    u32 changed = 0;
    bool tcp = answer->protocol == IPPROTO_TCP;
    if (answer->version == 4 && answer->identification != identification_of(answer->sequence))
        changed |= ALTERED_IDENTIFICATION;
    if (slot->length != answer->packet_length)
        changed |= ALTERED_LENGTH;
    if (answer->protocol == IPPROTO_UDP && slot->word != answer->word)
        changed |= ALTERED_LENGTH;
    if (slot->ports != answer->ports || slot->source[0] != answer->source[0] ||
        slot->source[1] != answer->source[1])
        changed |= ALTERED_SOURCE;
    if (tcp && slot->word != answer->word)
        changed |= ALTERED_SEQUENCE;
    if (answer->has_acknowledgement && slot->acknowledgement != answer->acknowledgement)
        changed |= ALTERED_SEQUENCE;
    if (answer->has_checksum && slot->partial != answer->checksum &&
        !same_checksum(slot->checksum, answer->checksum))
        changed |= ALTERED_CHECKSUM;
    /* Without forget, the verifier would follow each combination to the end. */
    return forget(changed);
}

/*
 * Whether a message with these changed fields is nevertheless an answer to the probe. Another
 * tracer may send probes by the same packets: then more fields are needed.
 */
static __always_inline bool is_proved(struct answer *answer, struct target *target, u32 changed) {
    bool alone = !target->foreign_ns;
    if (answer->evidence == NAMED_BY_MARK)
        return true;
    if (answer->evidence == NAMED_BY_URGENT) {
        bool same_id = !(changed & ALTERED_IDENTIFICATION);
        bool same_sequence = !(changed & ALTERED_SEQUENCE);
        if (alone && answer->version == 4)
            return same_id || same_sequence;
        return same_id && same_sequence;
    }
    /* The checksum covers a mark that is not quoted. */
    u32 decisive = ALTERED_LENGTH | ALTERED_SOURCE | ALTERED_SEQUENCE;
    return !(changed & (alone ? decisive : decisive | ALTERED_CHECKSUM));
}

/* Store an answer in a probe's slot, unless it has one already. */
static __always_inline void answer_slot(struct target *target, struct slot *slot, u64 state,
                                        struct answer *answer, u32 changed) {
    u64 answering = state - SLOT_SENT + SLOT_ANSWERING;
    if ((state & 0xff) != SLOT_SENT ||
        __sync_val_compare_and_swap(&slot->state, state, answering) != state) {
        __sync_fetch_and_add(&target->unmatched, 1);
        return;
    }
    slot->received_ns = answer->now;
    slot->responder[0] = answer->responder[0];
    slot->responder[1] = answer->responder[1];
    slot->ttl = answer->ttl;
    slot->icmp_type = answer->icmp->type;
    slot->icmp_code = answer->icmp->code;
    slot->quoted_ttl = answer->quoted_ttl;
    slot->quoted_tos = answer->quoted_tos;
    slot->altered = changed;
    take_extension(answer, slot);
    publish(slot, answering - SLOT_ANSWERING + SLOT_ANSWERED);
    __sync_fetch_and_add(&target->matched, 1);
    __sync_fetch_and_add(&target->matched_bytes, answer->bytes);
}

/* Whether the probe of this state left. */
static __always_inline bool was_sent(u64 state) {
    u8 kind = state;
    return kind == SLOT_SENT || kind == SLOT_ANSWERING || kind == SLOT_ANSWERED;
}

/* Find the probe that a message is about, and store the answer in its slot. */
static __always_inline enum owner match(struct shared *shared, struct answer *answer) {
    u32 index = 0;
    struct target *target = target_at(shared, &answer->to, &index);
    struct slot *slot = target ? slot_of(index, answer->sequence) : 0;
    if (!slot)
        return OF_HOST;
    u64 state = *(volatile u64 *)&slot->state;
    u32 changed = changes(answer, slot);
    if (was_sent(state) && (u16)(state >> STATE_BITS) == answer->sequence &&
        slot->protocol == answer->protocol && is_proved(answer, target, changed)) {
        answer_slot(target, slot, state, answer, changed);
        return OF_PROBE;
    }
    if (answer->evidence == NAMED_BY_URGENT && target->foreign_ns)
        return OF_FOREIGN_PROBE;
    __sync_fetch_and_add(&target->unmatched, 1);
    return answer->evidence == NAMED_BY_MARK ? OF_PROBE : OF_HOST;
}

/*
 * Read the quoted transport header, and find out which probe it names. Returns false if it is too
 * short. `*foreign` is set if it has the mark of another tracer.
 */
static __always_inline bool read_quote(struct answer *answer, bool *foreign) {
    u32 *header = answer->transport;
    u32 protocol = answer->protocol;
    if ((void *)(header + 2) > answer->end) /* IPv4 routers need not quote more */
        return false;
    u32 first = header[0], second = header[1];
    bool named = answer->version == 4;
    answer->evidence = NAMED_BY_IDENTIFICATION;
    answer->sequence = sequence_of(answer->identification);
    answer->ports = protocol == IPPROTO_TCP || protocol == IPPROTO_UDP ? first : second;
    answer->word = protocol == IPPROTO_TCP ? second : second & 0xffff;
    if (protocol == IPPROTO_TCP) {
        if ((void *)(header + 5) > answer->end)
            return named;
        answer->acknowledgement = header[2];
        answer->checksum = header[4];
        answer->has_acknowledgement = answer->has_checksum = 1;
        u16 urgent = bpf_ntohs(header[4] >> 16);
        if (!urgent || ((u8 *)header)[13] & TCP_URG)
            return named;
        answer->sequence = urgent;
        answer->evidence = NAMED_BY_URGENT;
        return true;
    }
    if (protocol != IPPROTO_UDP && protocol != IPPROTO_ICMP && protocol != IPPROTO_ICMPV6)
        return false;
    answer->checksum = (protocol == IPPROTO_UDP ? second : first) >> 16;
    answer->has_checksum = 1;
    struct mark *mark = (void *)(header + 2);
    if ((void *)(mark + 1) > answer->end || mark->magic != bpf_htonl(MAGIC))
        return named;
    *foreign = !is_own(mark); /* also if it is one of user space's requests */
    answer->sequence = bpf_ntohs(mark->sequence);
    answer->evidence = NAMED_BY_MARK;
    return true;
}

/* Handle an ICMP error. */
static __always_inline enum owner take_error(struct shared *shared, struct answer *answer) {
    bool foreign = false;
    if (!read_quote(answer, &foreign))
        return OF_HOST;
    return foreign ? OF_FOREIGN_PROBE : match(shared, answer);
}

/*
 * Handle an echo reply: the destination's to a probe that came as far, or the host's. It quotes
 * nothing but the payload. `answer` has its sender.
 */
static __always_inline enum owner take_reply(struct shared *shared, struct answer *answer) {
    struct mark *mark = (void *)(answer->icmp + 1);
    if ((void *)(mark + 1) > answer->end || mark->magic != bpf_htonl(MAGIC))
        return OF_HOST;
    if (!is_own(mark))
        return OF_FOREIGN_PROBE;
    u32 index = 0;
    struct target *target = target_at(shared, &answer->to, &index);
    answer->sequence = bpf_ntohs(mark->sequence);
    struct slot *slot = target ? slot_of(index, answer->sequence) : 0;
    if (!slot)
        return OF_PROBE;
    u64 state = *(volatile u64 *)&slot->state;
    answer->quoted_tos = slot->tos;
    if ((u16)(state >> STATE_BITS) == answer->sequence)
        answer_slot(target, slot, state, answer, 0);
    return OF_PROBE;
}

#endif
