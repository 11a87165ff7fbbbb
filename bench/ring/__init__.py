"""The packet ring: its cost for a packet, and floods whose captures must be whole."""
