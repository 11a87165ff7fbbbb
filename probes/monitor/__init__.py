"""The monitor (S2): an always-on sketch of all packets, policies over its metrics, and applications
that get the packets which active policies select."""
