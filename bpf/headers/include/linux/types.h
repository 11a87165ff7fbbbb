/* The kernel-side spellings that packet programs use, over the user-space API's types. */
#pragma once

#include <uapi/linux/types.h>

typedef __s8 s8;
typedef __u8 u8;
typedef __s16 s16;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;
#if __STDC_HOSTED__ /* bcc's compiler; clang for libbpf has these headers of its own */
typedef __s8 int8_t;
typedef __u8 uint8_t;
typedef __s16 int16_t;
typedef __u16 uint16_t;
typedef __s32 int32_t;
typedef __u32 uint32_t;
typedef __s64 int64_t;
typedef __u64 uint64_t;
typedef _Bool bool;
enum { false = 0, true = 1 };
typedef __kernel_size_t size_t;
#else
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#endif
typedef __kernel_ssize_t ssize_t;
typedef __kernel_pid_t pid_t;
typedef unsigned int gfp_t;
typedef unsigned long uintptr_t;

#ifndef NULL
#define NULL ((void *)0)
#endif
#ifndef offsetof
#define offsetof(type, member) __builtin_offsetof(type, member)
#endif
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#ifndef __packed
#define __packed __attribute__((packed))
#endif
#ifndef __aligned
#define __aligned(x) __attribute__((aligned(x)))
#endif
#ifndef __maybe_unused
#define __maybe_unused __attribute__((unused))
#endif
#if __STDC_HOSTED__
/* None: bcc puts a program into a section of its own, and only there are its lines known. */
#ifndef __section
#define __section(name) __attribute__((used))
#endif
/* Empty: bcc puts each program into a section of its own, from where it can call nothing. */
#ifndef __noinline
#define __noinline
#endif
/* bcc has variables of these names too; of several licences the source's comes first, and counts.
 */
#define PROBEDECK_PASTE(a, b) a##b
#define PROBEDECK_IN(section_, number)                                                             \
    __attribute__((section(#section_), used)) PROBEDECK_PASTE(_##section_, number)
#define _license PROBEDECK_IN(license, __COUNTER__)
#define _version PROBEDECK_IN(version, __COUNTER__)
#endif
#ifndef barrier
#define barrier() asm volatile("" ::: "memory")
#endif
/* What the compiler makes instructions of, where the size is a constant. */
void *memcpy(void *to, const void *from, size_t size);
void *memmove(void *to, const void *from, size_t size);
void *memset(void *at, int byte, size_t size);

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))
#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define BIT(n) (1UL << (n))
#define min(a, b)                                                                                  \
    ({                                                                                             \
        typeof(a) _a = (a);                                                                        \
        typeof(b) _b = (b);                                                                        \
        _a < _b ? _a : _b;                                                                         \
    })
#define max(a, b)                                                                                  \
    ({                                                                                             \
        typeof(a) _a = (a);                                                                        \
        typeof(b) _b = (b);                                                                        \
        _a > _b ? _a : _b;                                                                         \
    })

/* Byte order, over asm/byteorder.h, which bcc always brings. */
#define htons(x) __cpu_to_be16(x)
#define htonl(x) __cpu_to_be32(x)
#define ntohs(x) __be16_to_cpu(x)
#define ntohl(x) __be32_to_cpu(x)
#define cpu_to_be16(x) __cpu_to_be16(x)
#define cpu_to_be32(x) __cpu_to_be32(x)
#define cpu_to_be64(x) __cpu_to_be64(x)
#define be16_to_cpu(x) __be16_to_cpu(x)
#define be32_to_cpu(x) __be32_to_cpu(x)
#define be64_to_cpu(x) __be64_to_cpu(x)
