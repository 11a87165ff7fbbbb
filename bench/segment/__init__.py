"""Cost of the segment probe."""
