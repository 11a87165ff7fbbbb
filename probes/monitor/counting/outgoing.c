/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Counts outgoing packets for the selections of conditions that ask for them: `out_bytes`, and
 * answers of this host. It runs on egress while a policy needs it (outgoing.py), and
 * writes the counters of monitor.c in the same half.
 */
#include "probe.h"
#include "kernel.h"
#include "sketch.h"
#include "tracer.h"
#include "tunnel.h"

int outgoing(CONTEXT *ctx) {
    u32 cpu = bpf_get_smp_processor_id();
    struct sketch *sketch = sketches.lookup(&cpu);
    struct selector *selector = the_selector();
    if (!sketch || !selector || is_tracers(ctx))
        return VERDICT_PASS;
    struct wire_size size = size_on_wire(ctx);
    struct packet packet = {};
    if (!parse_innermost(ctx, &packet, size.packets, size.bytes))
        return VERDICT_PASS;
    struct selected_counters *counters = &sketch->outgoing;
    u64 selections = selections_of(selector, &packet) & counters->counted;
    if (selections)
        observe_selections(sketch, counters, &packet.key, size, hash_of(&packet.key), selections);
    return VERDICT_PASS;
}
