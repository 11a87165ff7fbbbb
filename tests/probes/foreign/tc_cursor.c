#include <bcc/proto.h>

struct Key { u32 src_ip; u32 dst_ip; };
struct Leaf { u64 packets; u64 bytes; };
BPF_TABLE("hash", struct Key, struct Leaf, sessions, 1024);

int parse(struct __sk_buff *skb)
{
  u8 *cursor = 0;

  struct ethernet_t *ethernet = cursor_advance(cursor, sizeof(*ethernet));
  switch (ethernet->type) {
    case 0x0800: goto ip;
    default: goto EOP;
  }

  ip: {
    struct ip_t *ip = cursor_advance(cursor, sizeof(*ip));
    struct Key key = {.src_ip = ip->src, .dst_ip = ip->dst};
    struct Leaf zleaf = {0};
    struct Leaf *leaf = sessions.lookup_or_try_init(&key, &zleaf);
    if (leaf) {
      lock_xadd(&leaf->packets, 1);
      lock_xadd(&leaf->bytes, skb->len);
    }
  }

  EOP:
  return 0;
}
