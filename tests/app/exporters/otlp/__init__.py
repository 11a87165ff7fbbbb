"""Tests of OTLP."""
