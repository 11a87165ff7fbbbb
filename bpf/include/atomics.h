/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Instructions that older kernels lack, and their substitutes.
 *
 * HAS_ATOMICS (Linux 5.12; arm64: 5.18) comes from bpf/features.py.
 */
#pragma once

/*
 * Set bits of a word that several CPUs write. Without atomics, a bit is lost if another CPU writes
 * the word at the same moment; the next packet with that bit sets it.
 */
static __always_inline void set_bits(u64 *word, u64 bits) {
#if HAS_ATOMICS
    __sync_fetch_and_or(word, bits);
#else
    *word |= bits;
#endif
}

/* Replace a word that several CPUs write. Returns false if it differs from `before` by now. */
static __always_inline bool replace_word(u64 *word, u64 before, u64 after) {
#if HAS_ATOMICS
    return __sync_val_compare_and_swap(word, before, after) == before;
#else
    *(volatile u64 *)word = after;
    return *(volatile u64 *)word == after;
#endif
}
