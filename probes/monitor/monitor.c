/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Counts every packet by protocol, and its flow in a HyperLogLog (S2.5 to S2.9).
 * Packets that an active policy selects go to the applications.
 *
 * `monitor` parses for all. A register keeps the largest hash value, not its number of leading
 * zeros: that saves the counting here, and tells user space more (probes/monitor/sketch.py). Each
 * CPU counts for itself (S2.21). The program has two halves with `sketches` each: one is written
 * while the other is read (S2.8). Up to `count` it has no state: a NIC could do as much (S2.20).
 *
 * A packet of an active policy's selection goes to `route`, which calls its applications. Each of
 * them calls the next one; `finish` comes last.
 *
 * CPUS, DATAGRAMS, REGISTERS (a power of two), RECORDS (1, unless TELEMETRY), TELEMETRY,
 * DROPS_MEASURED, DROPS_OTHERS, HASH_0 .. HASH_6 (odd secrets) and LINK_ETHERNET come from
 * probes/monitor/programs.py.
 */
#include "application.h"
#include "hash.h"
#include "kernel.h"
#include "select.h"
#include "sketch.h"
#include "tracer.h"
#include "tunnel.h"
#include <uapi/linux/udp.h>

/* Of packets that are measured, and of other packets. */
#define VERDICT_END (CONSTANT(DROPS_MEASURED) ? VERDICT_DROP : VERDICT_PASS)
#define VERDICT_OTHERS (CONSTANT(DROPS_OTHERS) ? VERDICT_DROP : VERDICT_PASS)

#define ARP_HEAD 0x40600080100ULL /* of Ethernet and IPv4; the operation follows */

/* User space's settings for the programs. */
struct control {
    u32 applications[SELECTIONS]; /* by `place_of` the selection; bit n: runs application n */
};

BPF_F_TABLE("array", u32, struct control, controls, 1, BPF_F_MMAPABLE);
/* By `place_of` the selection: packets of it that went to applications. */
BPF_PERCPU_ARRAY(chosen, u64, SELECTIONS);
BPF_HASH(receivers, struct flow_key, u8, 256); /* outer 5-tuples of telemetry */
BPF_PROG_ARRAY(router, 1);
#if TELEMETRY
BPF_PROG_ARRAY(counter, 1); /* `count_records` of this half */
#endif

/* A switch's record of a packet, in network order (S2.2). */
struct record {
    __be32 source;
    __be32 destination;
    __be16 source_port;
    __be16 destination_port;
    __be32 queue_depth;
    __be64 timestamp_us;
    __be16 ingress_port;
    __be16 bytes;
    __be16 ip_id;
    u8 protocol;
    u8 tcp_flags;
};

/* Before the records of a datagram. */
struct telemetry {
    __be16 version;
    __be16 count;
};
#define TELEMETRY_VERSION 1

static __always_inline void raise_register(u32 *registers, u32 mask, u64 hash) {
    u32 *largest = &registers[hash & mask];
    u32 value = hash >> 32 | 1;
    if (value > *largest)
        *largest = value;
}

/* Count a packet of a flow; the flow's hash. */
static __always_inline u64 observe(struct sketch *sketch, struct packet *packet,
                                   struct wire_size size) {
    u64 hash = hash_of(&packet->key);
    count(&sketch->tallies[PROTOCOL(&packet->key)], size);
    /* A merged segment adds one: FIN is its last packet's, and SYN and RST are not merged. */
    u64 flags = (packet->tcp_flags & TCP_FLAGS) | any_of(packet->fragment) * FRAGMENT;
    sketch->flags[opaque(flags) & (2 * FRAGMENT - 1)]++; /* Linux 6.1 sees no other bound */
    raise_register(sketch->registers, REGISTERS - 1, hash);
    return hash;
}

#if TELEMETRY

/* Turn a record into a parsed packet. */
static __always_inline void decapsulate(struct record *record, struct selected *selected) {
    u64 ports = (u64)record->source_port | (u64)record->destination_port << 16;
    *selected = (struct selected){};
    selected->packet.key.source[0] = record->source;
    selected->packet.key.destination[0] = record->destination;
    selected->packet.key.transport = TRANSPORT(ports, (u64)record->protocol, 4);
    /* Of TCP only, without a branch, which the verifier would follow for each record. */
    selected->packet.tcp_flags = record->tcp_flags & (any_of(record->protocol ^ IPPROTO_TCP) - 1);
    selected->packets = 1;
    selected->bytes = bpf_ntohs(record->bytes);
    selected->timestamp_us = __be64_to_cpup(&record->timestamp_us);
    selected->queue_depth = bpf_ntohl(record->queue_depth);
    selected->ingress_port = bpf_ntohs(record->ingress_port);
    selected->ip_id = bpf_ntohs(record->ip_id);
}

/*
 * Move `c` to the UDP header of a telemetry datagram and make its bytes linear. Returns false for
 * every other packet, which keeps all but its headers in pages.
 */
static __always_inline bool find_telemetry(CONTEXT *ctx, struct cursor *c) {
    struct packet outer;
#pragma nounroll
    for (int attempt = 0; attempt < 3; attempt++) {
        *c = (struct cursor){(void *)(long)ctx->data, (void *)(long)ctx->data_end};
        outer = (struct packet){};
        int result = parse_frame(c, &outer);
        if (result != PARSED && result != PARSED_CUT && result != PARSED_SHORT)
            return false;
        if (result == PARSED &&
            (PROTOCOL(&outer.key) != IPPROTO_UDP || !receivers.lookup(&outer.key)))
            return false;
#ifdef HOOK_XDP
        return result == PARSED;
#else
        if (result == PARSED && (c->end - (void *)(long)ctx->data >= ctx->len || attempt == 2))
            return true;
        bpf_skb_pull_data(ctx, result == PARSED ? ctx->len : min(ctx->len, (u32)HEADERS_PULLED));
#endif
    }
    return false;
}

#define MOST_HEADERS 4096 /* bytes in front of a datagram's UDP header */

/* Count the records in a datagram, and have them selected. Returns whether it is telemetry. */
static __always_inline bool observe_frame(CONTEXT *ctx, struct sketch *sketch) {
    struct cursor c;
    if (!find_telemetry(ctx, &c))
        return false;
    /* One state for all kinds of headers, or the verifier would follow the records for each. */
    void *data = (void *)(long)ctx->data;
    u64 offset = opaque(c.at - data);
    if (offset > MOST_HEADERS)
        return false;
    c = (struct cursor){(void *)opaque((u64)(data + offset)), (void *)(long)ctx->data_end};
    struct selection *selection = selection_of_cpu();
    struct selector *selector = the_selector();
    if (!selection || !selector)
        return true;
    struct wire_size size = size_on_wire(ctx);
    struct telemetry *telemetry = c.at + sizeof(struct udphdr);
    if ((void *)(telemetry + 1) > c.end || telemetry->version != bpf_htons(TELEMETRY_VERSION)) {
        lose(LOSS_MALFORMED, size.packets, size.bytes);
        return true;
    }
    u32 promised = bpf_ntohs(telemetry->count), found = 0;
    u64 active = selector->active, counted = sketch->incoming.counted, present = 0;
    struct record *record = (void *)(telemetry + 1);
    for (; found < RECORDS && found < promised; found++, record++) {
        if ((void *)(record + 1) > c.end)
            break;
        struct selected *selected = &selection->packets[found];
        decapsulate(record, selected);
        selected->hash = observe(sketch, &selected->packet, (struct wire_size){1, selected->bytes});
        if (active | counted)
            selected->selections = selections_of(selector, &selected->packet);
        present |= selected->selections;
    }
    if (found < promised)
        lose(LOSS_MALFORMED, promised - found, 0);
    /* Only the first of the datagrams that the kernel has merged (UDP GRO) is read. */
    if (size.packets > 1)
        lose(LOSS_MALFORMED, size.packets - 1, 0);
    selection->count = found;
    if (present & counted)
        counter.call(ctx, 0);
    if (present & active)
        router.call(ctx, 0);
    return true;
}

/* Count the records that `monitor` has found for their selections. One selection comes after the
 * other, in a program of its own: the verifier follows at most a million instructions. */
int count_records(CONTEXT *ctx) {
    u32 cpu = bpf_get_smp_processor_id();
    struct sketch *sketch = sketches.lookup(&cpu);
    struct selection *selection = selection_of_cpu();
    struct selector *selector = the_selector();
    if (!sketch || !selection || !selector)
        return VERDICT_END;
    u64 present = 0, slots_left = 0;
    for (u64 at = 0; has_record(selection, at); at++) {
        struct selected *selected = &selection->packets[at];
        present |= selected->selections;
        hash_parts(sketch->hashes[at], &selected->packet.key, selected->hash,
                   selected->selections & sketch->paired);
    }
    u64 selections = present & sketch->incoming.counted;
    for (u64 n = 0; n < SELECTIONS && selections; n++) {
        u64 bit = selections & -selections;
        selections ^= bit;
        u32 place = place_of(bit);
        slots_left |= sketch->incoming.slots_of[place];
        for (u64 at = 0; has_record(selection, at); at++) {
            struct selected *selected = &selection->packets[at];
            if (selected->selections & bit)
                count(&sketch->incoming.selected[place], (struct wire_size){1, selected->bytes});
        }
    }
    for (u64 n = 0; n < MOST_SLOTS && slots_left; n++) {
        u32 place = place_of(slots_left & -slots_left);
        slots_left &= slots_left - 1;
        struct slot *slot = slot_at(place);
        if (!slot)
            continue;
        u64 part = sketch->parts[place] & (PARTS - 1), bit = sketch->selection_of[place];
        for (u64 at = 0; has_record(selection, at); at++) {
            u64 hash = sketch->hashes[at][part];
            if (hash && selection->packets[at].selections & bit)
                observe_part(slot, hash, 1);
        }
    }
    if (present & selector->active)
        router.call(ctx, 0);
    return VERDICT_END;
}

#else

/* Return 1 for an ARP request, 2 for a reply, 0 for other frames without a flow. */
static __always_inline u64 arp_operation(CONTEXT *ctx, struct packet *packet) {
    void *arp = (void *)(long)ctx->data + (opaque(packet->network_at) & 0xff);
    if (arp + sizeof(u64) > (void *)(long)ctx->data_end)
        return 0;
    u64 head = *(u64 *)arp, operation = head >> 56;
    return head << 8 == ARP_HEAD << 8 && operation < 3 ? operation : 0;
}

/* Count a packet, and have it selected. Returns true: no packet is left to others. */
static __always_inline bool observe_frame(CONTEXT *ctx, struct sketch *sketch) {
    struct wire_size size = size_on_wire(ctx);
    struct packet packet = {};
    if (!parse_innermost(ctx, &packet, size.packets, size.bytes)) {
        u64 place = NO_PROTOCOL + arp_operation(ctx, &packet);
        count(&sketch->tallies[place], size);
        return true;
    }
    u64 hash = observe(sketch, &packet, size);
    struct selector *selector = the_selector();
    if (!selector)
        return true;
    u64 active = selector->active, counted = sketch->incoming.counted;
    u64 held = active | counted ? conjunctions_of(selector, &packet) : 0;
    u64 selections = held ? selections_with(selector, held) : 0;
    if (!(selections & (active | counted)))
        return true;
    /* User space adds it to each of these selections. */
    if (likely(!(selections & (active | sketch->sketched)) && count_combined(sketch, held, size)))
        return true;
    struct selection *selection = selection_of_cpu();
    if (!selection)
        return true;
    struct selected *selected = &selection->packets[0];
    *selected = (struct selected){.packet = packet, .packets = size.packets, .bytes = size.bytes};
    selected->hash = hash;
    selected->selections = selections;
    selection->count = 1;
    /* Read back from the map: else the verifier follows the counting for each kind of header. */
    selected = (void *)opaque((u64)selected);
    observe_selections(sketch, &sketch->incoming, &selected->packet.key,
                       (struct wire_size){selected->packets, selected->bytes}, selected->hash,
                       selected->selections & counted);
    if (selected->selections & active)
        router.call(ctx, 0);
    return true;
}

#endif

int monitor(CONTEXT *ctx) {
    if (is_tracers(ctx))
        return VERDICT_OTHERS;
    u32 cpu = bpf_get_smp_processor_id();
    struct sketch *sketch = sketches.lookup(&cpu);
    if (!sketch)
        return VERDICT_PASS;
    return observe_frame(ctx, sketch) ? VERDICT_END : VERDICT_OTHERS;
}

int route(CONTEXT *ctx) {
    u32 zero = 0, pending = 0;
    struct control *control = controls.lookup(&zero);
    struct selector *selector = the_selector();
    struct selection *selection = selection_of_cpu();
    if (!control || !selector || !selection)
        return VERDICT_END;
    u64 active = selector->active;
    u64 now = coarse_ns();
    for (u64 at = 0; has_record(selection, at); at++) {
        struct selected *selected = &selection->packets[at];
        u64 selections = selected->selections & active;
        u32 runs = 0;
        for (u64 n = 0; n < SELECTIONS && selections; n++) {
            u32 place = place_of(selections & -selections);
            selections &= selections - 1;
            runs |= control->applications[place];
            u64 *count = chosen.lookup(&place);
            if (count)
                *count += selected->packets;
        }
        selected->applications = runs;
        selected->now_ns = now;
        pending |= runs;
    }
    selection->pending = pending;
    call_next(ctx, selection);
    return VERDICT_END;
}

int finish(CONTEXT *ctx) {
    return VERDICT_END;
}
