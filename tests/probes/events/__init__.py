"""Tests of probes on tracepoints and cgroups."""
