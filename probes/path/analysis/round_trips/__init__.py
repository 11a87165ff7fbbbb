"""Round-trip times along a path: their levels, the queues that build up, and on which way."""
