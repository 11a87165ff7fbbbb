/* eBPF, x86-64 and arm64 have 64-bit longs. */
#ifndef PROBEDECK_ASM_BITSPERLONG_H
#define PROBEDECK_ASM_BITSPERLONG_H
#define __BITS_PER_LONG 64
#include <asm-generic/bitsperlong.h>
#endif
