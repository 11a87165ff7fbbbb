"""Recordings: bytes and CPU of a flow, the time to a moment, and a day of sums."""
