"""Digests of packets, by which two hosts compare what passed both: loss, order and delay."""
