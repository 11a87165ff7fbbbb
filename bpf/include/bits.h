/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Finding bits, as LLVM 14 crashes on __builtin_ctz and its kin for this target; and bounds that
 * every verifier sees.
 */
#pragma once

/*
 * `value`, about which LLVM assumes nothing. LLVM joins two bounds of a loop into a comparison with
 * their minimum, and verifiers before 6.6 then see no bound at all: `at < MOST && opaque(at) <
 * count` keeps them apart.
 */
static __always_inline u64 opaque(u64 value) {
    asm volatile("" : "+r"(value));
    return value;
}

/* 1 where some bit is set, without a branch: the verifier would follow both ways of each. */
static __always_inline u64 any_of(u64 bits) {
    asm("%0 = -%0\n%0 >>= 63" : "+r"(bits));
    return bits;
}

/* The number of the lowest bit that is set, of `bits` that are not 0. */
static __always_inline u32 lowest(u32 bits) {
    bits &= -bits;
    return any_of(bits & 0xaaaaaaaa) | any_of(bits & 0xcccccccc) << 1 |
           any_of(bits & 0xf0f0f0f0) << 2 | any_of(bits & 0xff00ff00) << 3 |
           any_of(bits & 0xffff0000) << 4;
}

/* That of the highest one. */
static __always_inline u32 highest(u32 bits) {
    bits |= bits >> 1;
    bits |= bits >> 2;
    bits |= bits >> 4;
    bits |= bits >> 8;
    bits |= bits >> 16;
    return lowest(bits - (bits >> 1));
}
