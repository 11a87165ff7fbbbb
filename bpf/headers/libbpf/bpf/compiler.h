/* Macros of the header of this name that programs of XDP share. */
#pragma once

#include <stddef.h>

#define __section(name) __attribute__((section(name), used))
#ifndef __maybe_unused
#define __maybe_unused __attribute__((unused))
#endif
#define __packed __attribute__((packed))
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#ifndef likely
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#endif
#define field_sizeof(type, member) sizeof(((type *)NULL)->member)
#define build_bug_on(x) _Static_assert(!(x), #x)
#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))
#define barrier_data(pointer) asm volatile("" : : "r"(pointer) : "memory")
#ifndef barrier
#define barrier() asm volatile("" : : : "memory")
#endif
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))
