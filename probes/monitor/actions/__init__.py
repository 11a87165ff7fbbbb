"""Actions of policies: drop, limit or mirror the packets that they select (S2.15)."""
