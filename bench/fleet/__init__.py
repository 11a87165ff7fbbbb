"""Cost of following a fleet: `python -I -m bench.fleet`."""
