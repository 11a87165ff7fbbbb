/* The same on x86-64 and arm64. */
#include <asm-generic/ioctl.h>
