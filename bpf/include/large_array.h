/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Array maps whose values have many elements.
 *
 * For each map's variable, bcc makes functions that print and read a value element by element, and
 * optimises them. Nobody calls them here. For thousands of elements that takes longer than the
 * program itself. bcc looks the variable up by the map's name, so another symbol prevents it.
 */
#pragma once

/* A map `name` of `entries` values of `type` by index, which user space may map into its memory. */
#define LARGE_ARRAY(type, name, entries)                                                           \
    struct name##_table_t;                                                                         \
    extern struct name##_table_t name __asm__("large_" #name);                                     \
    BPF_F_TABLE("array", u32, type, name, entries, BPF_F_MMAPABLE)
