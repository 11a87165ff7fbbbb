"""CPU of the probe of sockets for a window."""
