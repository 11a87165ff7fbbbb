"""Owners in written tables: the probe's tables, and the columns of flows and conversations."""
