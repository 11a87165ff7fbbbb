/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Sockets that processes create, by process name and protocol.
 *
 * The kernel runs the program inside socket(). It observes: its return value forbids no socket.
 */
#include "event.h"

struct creator {
    char process[16];
    u32 protocol;
};

BPF_HASH(sockets, struct creator, u64, 4096);

int created(struct bpf_sock *socket) {
    struct creator creator = {.protocol = socket->protocol};
    bpf_get_current_comm(creator.process, sizeof(creator.process));
    u64 none = 0, *count = sockets.lookup_or_try_init(&creator, &none);
    if (count)
        lock_xadd(count, 1);
    else
        lose(LOSS_TABLE_FULL, 1, 0);
    return 1;
}
