/* What bcc's own headers ask of a kernel configuration. */
#define CONFIG_BPF_SYSCALL 1
#define CONFIG_64BIT 1
