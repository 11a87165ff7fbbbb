"""Sorted tables, their exports and comparisons."""
