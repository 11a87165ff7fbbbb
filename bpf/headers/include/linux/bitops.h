/* The kernel's rotations, as its jhash uses them. */
#pragma once

#include <linux/types.h>

#define BITS_PER_BYTE 8
#define BIT_ULL(n) (1ULL << (n))

static inline __u32 rol32(__u32 word, unsigned int shift) {
    return word << (shift & 31) | word >> (-shift & 31);
}

static inline __u32 ror32(__u32 word, unsigned int shift) {
    return word >> (shift & 31) | word << (-shift & 31);
}

static inline __u64 rol64(__u64 word, unsigned int shift) {
    return word << (shift & 63) | word >> (-shift & 63);
}
