/* x86-64 and arm64 are little-endian. */
#ifndef PROBEDECK_ASM_BYTEORDER_H
#define PROBEDECK_ASM_BYTEORDER_H
#include <linux/byteorder/little_endian.h>
#endif
