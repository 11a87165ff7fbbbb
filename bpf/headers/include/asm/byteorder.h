/* x86-64 and arm64 are little-endian. */
#pragma once
#include <linux/byteorder/little_endian.h>
