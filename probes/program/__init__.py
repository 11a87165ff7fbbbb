"""User probes: any eBPF C under the generic control plane (S1.5)."""
