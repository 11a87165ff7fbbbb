"""Configurations of probes: the model, its checks, and its errors."""
