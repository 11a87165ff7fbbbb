"""Cost of a start."""
