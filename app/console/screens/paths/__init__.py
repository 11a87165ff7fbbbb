"""Screen 2: paths."""
