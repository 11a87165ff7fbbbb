/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Processes that hold sockets: the kernel runs this iterator for each descriptor of each process,
 * and each descriptor of an internet socket gives a record, in every network namespace.
 *
 * Offsets in the kernel's structures are macros (bpf/kernel_types.py).
 */
#include <uapi/linux/bpf.h>

#define IPV4 2
#define IPV6 10
#define REST 64 /* descriptors without a record, after which an empty one lets the reader stop */

struct bpf_iter_meta {
    void *seq;
    u64 session_id;
    u64 seq_num;
};

struct descriptor {
    struct bpf_iter_meta *meta;
    void *task;
    u32 number;
    void *file;
};

struct holder {
    u64 cookie; /* 0: nobody has asked for it yet */
    u64 cgroup; /* of the socket */
    u64 start;  /* ns, CLOCK_BOOTTIME: of the process */
    u32 inode;  /* 0: an empty record */
    u32 namespace;
    u32 process;
    u32 user; /* who made the socket */
    u16 port; /* on this host; identifier of an ICMP socket */
    u8 protocol;
    u8 family;
    u8 type;
    u8 unused[3];
    char command[16];
};

struct progress {
    u64 rest;
    struct holder holder; /* too large for the stack beside the helpers' */
};

BPF_ARRAY(visited, struct progress, 1); /* one reader at a time */

#define READ(to, from, offset) bpf_probe_read_kernel(&(to), sizeof(to), (from) + (offset))

static __always_inline void read_socket(struct holder *holder, void *sock) {
    void *net = 0, *cgroup = 0, *node = 0;
    READ(holder->cookie, sock, CONSTANT(SOCK_COOKIE));
    READ(net, sock, CONSTANT(SOCK_NET));
    READ(holder->namespace, net, CONSTANT(NET_NUMBER));
    READ(holder->port, sock, CONSTANT(SOCK_PORT));
    READ(holder->protocol, sock, CONSTANT(SOCK_PROTOCOL));
    READ(holder->type, sock, CONSTANT(SOCK_TYPE));
    READ(holder->user, sock, CONSTANT(SOCK_USER));
    READ(cgroup, sock, CONSTANT(SOCK_CGROUP));
    READ(node, cgroup, CONSTANT(CGROUP_NODE));
    READ(holder->cgroup, node, CONSTANT(NODE_ID));
}

static __always_inline void read_process(struct holder *holder, void *task) {
    void *leader = 0;
    READ(holder->process, task, CONSTANT(TASK_PROCESS));
    READ(leader, task, CONSTANT(TASK_LEADER));
    READ(holder->command, leader, CONSTANT(TASK_COMMAND));
    READ(holder->start, leader, CONSTANT(TASK_START));
}

/* The socket behind a descriptor, of the families that flows have; 0: another file. */
static __always_inline void *socket_of(void *file, struct holder *holder) {
    void *socket = bpf_sock_from_file(file), *sock = 0;
    if (!socket)
        return 0;
    READ(sock, socket, CONSTANT(SOCKET_SOCK));
    if (!sock)
        return 0;
    READ(holder->family, sock, CONSTANT(SOCK_FAMILY));
    return holder->family == IPV4 || holder->family == IPV6 ? sock : 0;
}

int holders(struct descriptor *descriptor) {
    void *task = descriptor->task, *file = descriptor->file, *seq = descriptor->meta->seq;
    u32 zero = 0;
    struct progress *progress = visited.lookup(&zero);
    if (!task || !file || !progress)
        return 0;
    struct holder *holder = &progress->holder;
    __builtin_memset(holder, 0, sizeof(*holder));
    void *sock = socket_of(file, holder), *inode = 0;
    if (!sock && ++progress->rest < REST)
        return 0;
    progress->rest = 0;
    if (sock) {
        READ(inode, file, CONSTANT(FILE_INODE));
        READ(holder->inode, inode, CONSTANT(INODE_NUMBER));
        read_socket(holder, sock);
        read_process(holder, task);
    }
    bpf_seq_write(seq, holder, sizeof(*holder));
    return 0;
}
