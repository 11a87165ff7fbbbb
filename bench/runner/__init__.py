"""Runs the cases of benches by turns, and writes results, charts and the page of them."""
