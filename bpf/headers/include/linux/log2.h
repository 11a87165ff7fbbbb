#pragma once
/* Only of constants, as in a map's size: LLVM 14 crashes on the instructions that a variable needs.
 */
#define ilog2(n) (63 - __builtin_clzll(n))
#define roundup_pow_of_two(n) ((n) <= 1 ? 1UL : 1UL << (64 - __builtin_clzll((n)-1)))
