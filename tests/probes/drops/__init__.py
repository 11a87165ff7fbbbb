"""Tests of the probe of drops."""
