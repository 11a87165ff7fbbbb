/* The C library's name of both IP versions' addresses and protocols. */
#pragma once

#include <linux/in.h>
#include <linux/in6.h>
