/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Marks of a probe on the wire: fields that routers quote and load balancers ignore tell its
 * sequence number, and that this process sent it.
 *
 * IPv4's identification is the number times a secret factor. TCP has the number in the urgent
 * pointer, without URG: 0 would be no number, so no probe has one that ends in 16 zero bits. UDP
 * and ICMP echo have a `mark` as payload.
 *
 * MAGIC, KEY (odd), ID_FACTOR (odd) and ID_INVERSE, its inverse modulo 65536, come from
 * probes/path/programs.py. They are secrets of one process: other tracers' probes may have the same
 * flow and number, but not the same marks.
 */
#ifndef MARK_H
#define MARK_H

#include "packet.h"

struct mark {
    __be32 magic;
    __be16 sequence;
    __be16 tag;
};

static __always_inline u16 identification_of(u16 sequence) {
    return sequence * CONSTANT(ID_FACTOR);
}

static __always_inline u16 sequence_of(u16 identification) {
    return identification * CONSTANT(ID_INVERSE);
}

static __always_inline u16 tag_of(u16 sequence) {
    return (sequence + 1) * CONSTANT(KEY) >> 48;
}

static __always_inline struct mark mark_of(u16 sequence) {
    return (struct mark){bpf_htonl(MAGIC), bpf_htons(sequence), bpf_htons(tag_of(sequence))};
}

static __always_inline bool is_own(struct mark *mark) {
    return mark->tag == bpf_htons(tag_of(bpf_ntohs(mark->sequence)));
}

/* Whether the mark is of an echo request by user space: see marks.py. */
static __always_inline bool is_request(struct mark *mark) {
    return mark->magic == bpf_htonl(MAGIC) &&
           mark->tag == (u16)~bpf_htons(tag_of(bpf_ntohs(mark->sequence)));
}

#endif
