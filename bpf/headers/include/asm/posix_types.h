/* The same on x86-64 and arm64. */
#include <asm-generic/posix_types.h>
