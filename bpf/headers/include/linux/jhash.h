/* Bob Jenkins' hash, public domain, with the kernel's names and results. */
#pragma once

#include <linux/bitops.h>
#include <linux/types.h>

#define JHASH_INITVAL 0xdeadbeef
#define jhash_size(n) ((u32)1 << (n))
#define jhash_mask(n) (jhash_size(n) - 1)

#define __jhash_mix(a, b, c)                                                                       \
    {                                                                                              \
        a -= c, a ^= rol32(c, 4), c += b;                                                          \
        b -= a, b ^= rol32(a, 6), a += c;                                                          \
        c -= b, c ^= rol32(b, 8), b += a;                                                          \
        a -= c, a ^= rol32(c, 16), c += b;                                                         \
        b -= a, b ^= rol32(a, 19), a += c;                                                         \
        c -= b, c ^= rol32(b, 4), b += a;                                                          \
    }

#define __jhash_final(a, b, c)                                                                     \
    {                                                                                              \
        c ^= b, c -= rol32(b, 14);                                                                 \
        a ^= c, a -= rol32(c, 11);                                                                 \
        b ^= a, b -= rol32(a, 25);                                                                 \
        c ^= b, c -= rol32(b, 16);                                                                 \
        a ^= c, a -= rol32(c, 4);                                                                  \
        b ^= a, b -= rol32(a, 14);                                                                 \
        c ^= b, c -= rol32(b, 24);                                                                 \
    }

/* `size` words. */
static __always_inline u32 jhash2(const u32 *key, u32 size, u32 initval) {
    u32 a = JHASH_INITVAL + (size << 2) + initval, b = a, c = a;
    for (; size > 3; size -= 3, key += 3) {
        a += key[0];
        b += key[1];
        c += key[2];
        __jhash_mix(a, b, c);
    }
    if (size > 2)
        c += key[2];
    if (size > 1)
        b += key[1];
    if (size > 0) {
        a += key[0];
        __jhash_final(a, b, c);
    }
    return c;
}

/* `size` bytes. */
static __always_inline u32 jhash(const void *key, u32 size, u32 initval) {
    const u8 *k = key;
    u32 a = JHASH_INITVAL + size + initval, b = a, c = a;
    for (; size > 12; size -= 12, k += 12) {
        a += k[0] | (u32)k[1] << 8 | (u32)k[2] << 16 | (u32)k[3] << 24;
        b += k[4] | (u32)k[5] << 8 | (u32)k[6] << 16 | (u32)k[7] << 24;
        c += k[8] | (u32)k[9] << 8 | (u32)k[10] << 16 | (u32)k[11] << 24;
        __jhash_mix(a, b, c);
    }
    if (!size)
        return c;
#pragma unroll
    for (u32 i = 0; i < 12; i++) {
        if (i >= size)
            break;
        u32 byte = (u32)k[i] << (i & 3) * 8;
        if (i < 4)
            a += byte;
        else if (i < 8)
            b += byte;
        else
            c += byte;
    }
    __jhash_final(a, b, c);
    return c;
}

static __always_inline u32 __jhash_nwords(u32 a, u32 b, u32 c, u32 initval) {
    a += initval;
    b += initval;
    c += initval;
    __jhash_final(a, b, c);
    return c;
}

static __always_inline u32 jhash_3words(u32 a, u32 b, u32 c, u32 initval) {
    return __jhash_nwords(a, b, c, initval + JHASH_INITVAL + (3 << 2));
}

static __always_inline u32 jhash_2words(u32 a, u32 b, u32 initval) {
    return __jhash_nwords(a, b, 0, initval + JHASH_INITVAL + (2 << 2));
}

static __always_inline u32 jhash_1word(u32 a, u32 initval) {
    return __jhash_nwords(a, 0, 0, initval + JHASH_INITVAL + (1 << 2));
}
