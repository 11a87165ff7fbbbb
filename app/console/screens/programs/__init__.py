"""Screen 5: programs."""
