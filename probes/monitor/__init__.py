"""The monitor (S2): an always-on sketch of all packets, policies over what it says,
and applications that are given the packets which those select.
"""
