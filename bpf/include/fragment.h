/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Later fragments in the flow of their datagram: the first fragment alone has the ports.
 *
 * All programs of a probe share `datagrams`. The kernel evicts the datagrams that were not used for
 * the longest time. DATAGRAMS is 1 for the compiler.
 */
#pragma once

#include "kernel.h"
#include "packet.h"

#define DATAGRAM_NS 30000000000ULL /* an identification may then be another datagram's */

struct datagram {
    u64 transport; /* of the first fragment */
    u64 seen_ns;
};

/* The key is a flow key with a datagram's identification in place of the ports. */
BPF_TABLE("lru_hash", struct flow_key, struct datagram, datagrams, DATAGRAMS);

/*
 * Give a later fragment the transport of its datagram's first fragment, if that came before. For
 * IPv6 an identification holds for all protocols: later fragments need not know theirs (RFC 8200).
 */
static __always_inline void join_fragments(struct packet *packet) {
    if (!unlikely(packet->fragment))
        return;
    struct flow_key key = packet->key;
    u64 version = VERSION(&key);
    key.transport = TRANSPORT(packet->datagram, version == 4 ? PROTOCOL(&key) : 0, version) |
                    packet->vlan << 48;
    u64 now = coarse_ns();
    if (!is_later_fragment(packet)) {
        struct datagram datagram = {packet->key.transport, now};
        datagrams.update(&key, &datagram);
        return;
    }
    struct datagram *datagram = datagrams.lookup(&key);
    if (datagram && now - datagram->seen_ns < DATAGRAM_NS)
        packet->key.transport = datagram->transport;
}
