"""Cost of several interfaces in one run."""
