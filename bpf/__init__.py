"""The kernel's edge: compiles, loads, attaches, swaps, drains and accounts for eBPF programs.

Knows no probe and no screen.
"""
