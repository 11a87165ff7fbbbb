"""Applications that come with the monitor (S2.16).

Each has a configuration NAME.toml, its C NAME.c, and in NAME.py the view of its metrics.
"""
