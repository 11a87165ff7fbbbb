/* Verdicts of TCX, which kernel headers before 6.6 lack. */
#include_next <linux/bpf.h>

#if !defined(BPF_F_BEFORE) && !defined(PROBEDECK_TCX)
#define PROBEDECK_TCX
enum tcx_action_base { TCX_NEXT = -1, TCX_PASS = 0, TCX_DROP = 2, TCX_REDIRECT = 7 };
#endif
