#define MAX_FLOWS 256
#define COUNTER_T u64
#define DECLARE(n) BPF_HASH(n, u32, COUNTER_T, MAX_FLOWS)
#define TABLE renamed
#if defined(HOOK_XDP) && !defined(NO_COUNT)
  #  if MAX_FLOWS > 100
    DECLARE(large);
  #  else
    DECLARE(small);
  #  endif
#endif
BPF_HASH(TABLE, u32, COUNTER_T, MAX_FLOWS * 2);
#define BUMP(counter) do { \
        (counter)++;       \
    } while (0)

int prog(struct xdp_md *ctx)
{
    u32 len = ctx->data_end - ctx->data; COUNTER_T zero = 0, *n;
    large.increment(len);
    n = renamed.lookup_or_try_init(&len, &zero); if (n) BUMP(*n);
    return XDP_PASS;
}
