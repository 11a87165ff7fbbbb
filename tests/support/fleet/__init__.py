"""Fleets of simulated and of real hosts."""
