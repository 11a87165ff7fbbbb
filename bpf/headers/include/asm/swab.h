/* Empty: linux/swab.h then uses the compiler's functions, which eBPF has instructions for. */
