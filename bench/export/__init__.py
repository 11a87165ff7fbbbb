"""Benches of exporters."""
