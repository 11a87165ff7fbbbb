"""Probes whose programs are written for libbpf, and ready objects."""
