"""The packet ring: the first bytes of the last packets of selected flows, in the kernel."""
