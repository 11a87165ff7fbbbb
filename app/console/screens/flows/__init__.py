"""Screen 3: flows."""
