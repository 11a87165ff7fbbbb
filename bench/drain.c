/* The opponent of bench.drain: the system calls that a C program would read a map with.
 *
 * usage: drain MAP_FD KEY_SIZE VALUE_SIZE ENTRIES
 * Reads words from standard input, and answers each with "nanoseconds entries":
 *   lookup  BPF_MAP_LOOKUP_BATCH until the end, into buffers that are already there
 *   pop     BPF_MAP_LOOKUP_AND_DELETE_ELEM until the end
 *   push    BPF_MAP_UPDATE_ELEM of ENTRIES values, to have something to pop
 */
#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int map_fd;
static char *keys, *values;
static size_t key_size, value_size, entries, room;

static int bpf(enum bpf_cmd command, union bpf_attr *attr) {
    return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static uint64_t now(void) {
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static size_t lookup(void) {
    union bpf_attr attr;
    uint64_t cursor[8];
    size_t done = 0;
    int ended;

    memset(&attr, 0, sizeof(attr));
    attr.batch.map_fd = map_fd;
    attr.batch.out_batch = (uintptr_t)cursor;
    do {
        attr.batch.keys = (uintptr_t)(keys + done * key_size);
        attr.batch.values = (uintptr_t)(values + done * value_size);
        attr.batch.count = room - done;
        ended = bpf(BPF_MAP_LOOKUP_BATCH, &attr);
        if (ended && errno != ENOENT) {
            perror("lookup");
            exit(1);
        }
        done += attr.batch.count;
        attr.batch.in_batch = (uintptr_t)cursor;
    } while (!ended);
    return done;
}

static size_t pop(void) {
    union bpf_attr attr;
    size_t done = 0;

    memset(&attr, 0, sizeof(attr));
    attr.map_fd = map_fd;
    for (;; done++) {
        attr.value = (uintptr_t)(values + done * value_size);
        if (bpf(BPF_MAP_LOOKUP_AND_DELETE_ELEM, &attr))
            return done;
    }
}

static size_t push(void) {
    union bpf_attr attr;
    size_t done = 0;

    memset(&attr, 0, sizeof(attr));
    attr.map_fd = map_fd;
    attr.value = (uintptr_t)values;
    while (done < entries && !bpf(BPF_MAP_UPDATE_ELEM, &attr))
        done++;
    return done;
}

int main(int argc, char **argv) {
    char word[16];

    if (argc != 5)
        return 2;
    map_fd = atoi(argv[1]);
    key_size = strtoul(argv[2], NULL, 10);
    value_size = strtoul(argv[3], NULL, 10);
    entries = strtoul(argv[4], NULL, 10);
    room = entries + 64;
    keys = malloc(room * (key_size + 1));
    values = malloc(room * value_size);
    if (!keys || !values)
        return 1;
    memset(keys, 1, room * (key_size + 1));
    memset(values, 1, room * value_size);
    while (scanf("%15s", word) == 1) {
        uint64_t start = now();
        size_t done;

        if (!strcmp(word, "lookup"))
            done = lookup();
        else
            done = strcmp(word, "pop") ? push() : pop();
        printf("%llu %zu\n", (unsigned long long)(now() - start), done);
        fflush(stdout);
    }
    return 0;
}
