/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The time of packets, to a millisecond, for two memory reads.
 *
 * CLOCK_TIMER (see probes/flow/clock.py) is defined if the kernel has timers for programs, and if
 * its tick is too long for a clock. A timer then writes the time into a cell each millisecond. It
 * runs only while packets come fast: the packets start it, and it ends after CLOCK_RUN_NS.
 *
 * A cell is valid for one or two ticks, by jiffies. Without a valid cell (few packets, or a CPU
 * that is kept from running its timers) each packet reads the kernel's clock, which is exact and
 * slower.
 *
 * CLOCK_GIVEN is defined for frames of a capture: user space writes the time of each.
 *
 * Without either, the time is jiffies.
 */
#pragma once

#if defined(CLOCK_GIVEN)

BPF_ARRAY(clock, u64, 1); /* user space makes it */

static __always_inline u64 packet_time(void) {
    u32 zero = 0;
    u64 *time = clock.lookup(&zero);
    return time ? *time : 0;
}

#elif defined(CLOCK_TIMER)

#include <uapi/linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 15, 0)
struct bpf_timer {
    u64 opaque[2];
};
#endif

struct clock {
    u64 cell;  /* the time, and above it the jiffies of the tick after: one word, written at once */
    u64 end;   /* nanoseconds: the timer's end */
    u64 since; /* nanoseconds: begin of an interval in which calls of the clock are counted */
    u64 calls;
    struct bpf_timer timer;
};

BPF_ARRAY(clock, struct clock, 1); /* user space makes it, and the timer's program */

static int (*start_timer)(struct bpf_timer *timer, u64 ns, u64 flags) = (void *)171;

/* The kernel's clock. Many calls within CLOCK_INTERVAL_NS start the timer. */
static __always_inline u64 exact_time(struct clock *clock) {
    u64 now = bpf_ktime_get_ns();
    if (now - clock->since > CLOCK_INTERVAL_NS) {
        clock->since = now;
        clock->calls = 0;
    } else if (++clock->calls == CLOCK_CALLS) {
        clock->end = now + CLOCK_RUN_NS;
        /* At once: other CPUs must not start it again and again, which would put it off. */
        clock->cell = (u32)(now >> CLOCK_SHIFT) | (bpf_jiffies64() + 1) << 32;
        start_timer(&clock->timer, CLOCK_PERIOD_NS, 0);
    }
    return now >> CLOCK_SHIFT;
}

/* The time in units of 1 << CLOCK_SHIFT ns; only the lower 32 bits count. */
static __always_inline u64 packet_time(void) {
    u32 zero = 0;
    struct clock *at = clock.lookup(&zero);
    if (!at)
        return 0;
    u64 cell = at->cell;
    if (likely(!((cell - (bpf_jiffies64() << 32)) >> 33)))
        return cell;
    return exact_time(at);
}

#else

static __always_inline u64 packet_time(void) {
    return bpf_jiffies64();
}

#endif

/* A coarse time that is no later if a timer is: jiffies, except for captures. */
static __always_inline u64 coarse_time(void) {
#ifdef CLOCK_GIVEN
    return packet_time();
#else
    return bpf_jiffies64();
#endif
}
