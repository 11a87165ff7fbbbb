"""Tests of the socket probe."""
