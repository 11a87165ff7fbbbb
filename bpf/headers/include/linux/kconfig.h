/* bcc has it included before all else. */
#pragma once
#include <generated/autoconf.h>
