"""The kernel's knowledge of sockets, read over netlink into numpy: no policy, no packets."""
