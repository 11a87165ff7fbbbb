/* What libbpf's header has and bcc lacks; libbpf's maps are not to be had, but by bcc's macros. */
#pragma once

#include <linux/types.h>
#include <uapi/linux/bpf.h>

/* bcc puts a program into a section of its own, and only there are its lines known. */
#define SEC(name) __section(name)
#define LICENSE _license
#define __license _license

#define __uint(name, value)                                                                        \
    _Static_assert(0, "declare maps by bcc's macros, such as BPF_HASH(name, key, value, size)")
#define __type(name, type) _Static_assert(1, "said already")
#define __array(name, type) _Static_assert(1, "said already")

#define bpf_printk(format, ...)                                                                    \
    ({                                                                                             \
        char _format[] = format;                                                                   \
        bpf_trace_printk_(_format, sizeof(_format), ##__VA_ARGS__);                                \
    })
