/* What libbpf's header has and bcc lacks. */
#pragma once

#include <linux/types.h>

#define bpf_cpu_to_be16(x) __cpu_to_be16(x)
#define bpf_cpu_to_be32(x) __cpu_to_be32(x)
#define bpf_cpu_to_be64(x) __cpu_to_be64(x)
#define bpf_be16_to_cpu(x) __be16_to_cpu(x)
#define bpf_be32_to_cpu(x) __be32_to_cpu(x)
#define bpf_be64_to_cpu(x) __be64_to_cpu(x)
#define __bpf_constant_htons(x) __constant_htons(x)
#define __bpf_constant_ntohs(x) __constant_ntohs(x)
#define __bpf_constant_htonl(x) __constant_htonl(x)
#define __bpf_constant_ntohl(x) __constant_ntohl(x)
