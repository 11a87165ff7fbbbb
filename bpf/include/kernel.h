/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * A helper that older kernels lack, and its substitute.
 *
 * HAS_COARSE_CLOCK (Linux 5.11) comes from bpf/features.py.
 */
#pragma once

/* CLOCK_MONOTONIC, to a tick's resolution if the kernel has that cheaper clock. */
static __always_inline u64 coarse_ns(void) {
#if HAS_COARSE_CLOCK
    return bpf_ktime_get_coarse_ns();
#else
    return bpf_ktime_get_ns();
#endif
}
