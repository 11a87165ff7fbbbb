"""Tapes: what an operator does, written down a line a step, and played again. Knows no screen."""
