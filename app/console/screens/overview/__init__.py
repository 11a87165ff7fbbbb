"""Screen 1: overview."""
