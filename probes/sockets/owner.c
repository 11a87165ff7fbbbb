/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Processes that open and close sockets: two cgroup programs, which write an event each.
 *
 * The kernel runs them in the process that calls socket() or closes the last descriptor. A 0 would
 * forbid the socket, but the loader makes both programs return 1, whatever they return here.
 *
 * TASK_LEADER and others are offsets in the kernel's structures (bpf/kernel_types.py). Without
 * HAS_OFFSETS, the name is the calling thread's, and start and namespace are 0.
 */
#include <uapi/linux/bpf.h>

#define ALLOW 1

enum socket_event_kind { OPENED, CLOSED };

struct socket_event {
    u64 cookie;
    u64 time;   /* ns, CLOCK_MONOTONIC */
    u64 start;  /* ns, CLOCK_BOOTTIME: of the process */
    u64 cgroup; /* of the process */
    u32 process;
    u32 user;
    u32 namespace; /* number of the socket's network namespace */
    u16 kind;
    u8 family;
    u8 protocol;
    char command[16]; /* name of the process */
};
_Static_assert(sizeof(struct socket_event) == 64, "probedeck reads events of 64 bytes");

BPF_RINGBUF_OUTPUT(events, 1);  /* user space makes it larger */
BPF_PERCPU_ARRAY(lost, u64, 1); /* events that found the ring full */

static __always_inline void count_lost(void) {
    u32 zero = 0;
    u64 *count = lost.lookup(&zero);
    if (count)
        (*count)++;
}

/* The process's own name, and when it began: a thread of dig is called isc-net-0000. */
static __always_inline void read_process(struct socket_event *event) {
    if (!CONSTANT(HAS_OFFSETS)) {
        bpf_get_current_comm(event->command, sizeof(event->command));
        return;
    }
    void *task = (void *)bpf_get_current_task(), *leader = 0;
    bpf_probe_read_kernel(&leader, sizeof(leader), task + CONSTANT(TASK_LEADER));
    bpf_probe_read_kernel(event->command, sizeof(event->command), leader + CONSTANT(TASK_COMMAND));
    bpf_probe_read_kernel(&event->start, sizeof(event->start), leader + CONSTANT(TASK_START));
}

static __always_inline u32 namespace_of(struct bpf_sock *socket) {
    u32 number = 0;
    void *net = 0;
    if (!CONSTANT(HAS_OFFSETS))
        return 0;
    bpf_probe_read_kernel(&net, sizeof(net), (void *)socket + CONSTANT(SOCKET_NET));
    bpf_probe_read_kernel(&number, sizeof(number), net + CONSTANT(NET_NUMBER));
    return number;
}

static __always_inline int tell(struct bpf_sock *socket, enum socket_event_kind kind) {
    struct socket_event *event = events.ringbuf_reserve(sizeof(*event));
    if (!event) {
        count_lost();
        return ALLOW;
    }
    __builtin_memset(event, 0, sizeof(*event));
    event->cookie = bpf_get_socket_cookie(socket);
    event->time = bpf_ktime_get_ns();
    event->cgroup = bpf_get_current_cgroup_id();
    event->process = bpf_get_current_pid_tgid() >> 32;
    event->user = bpf_get_current_uid_gid();
    event->namespace = namespace_of(socket);
    event->kind = kind;
    event->family = socket->family;
    event->protocol = socket->protocol;
    read_process(event);
    events.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
    return ALLOW;
}

int socket_opened(struct bpf_sock *socket) {
    return tell(socket, OPENED);
}

int socket_closed(struct bpf_sock *socket) {
    return tell(socket, CLOSED);
}
