/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * An instruction that older kernels lack, and its substitute.
 *
 * HAS_ATOMICS (Linux 5.12; arm64: 5.18) comes from bpf/features.py.
 */
#pragma once

/* Replace a word that several CPUs write. Returns false if it differs from `before` by now. */
static __always_inline bool replace_word(u64 *word, u64 before, u64 after) {
#if HAS_ATOMICS
    return __sync_val_compare_and_swap(word, before, after) == before;
#else
    *(volatile u64 *)word = after;
    return *(volatile u64 *)word == after;
#endif
}
