/* eBPF, x86-64 and arm64 have 64-bit longs. */
#pragma once
#define __BITS_PER_LONG 64
#include <asm-generic/bitsperlong.h>
