/* bcc has it included before all else. */
#ifndef PROBEDECK_LINUX_KCONFIG_H
#define PROBEDECK_LINUX_KCONFIG_H
#include <generated/autoconf.h>
#endif
