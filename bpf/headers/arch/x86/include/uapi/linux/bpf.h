/* Found before bcc's own older copy, whose guard it takes. */
#ifndef _UAPI__LINUX_BPF_H__
#define _UAPI__LINUX_BPF_H__
#include "/usr/include/linux/bpf.h"
#endif
