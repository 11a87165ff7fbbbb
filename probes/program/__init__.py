"""A user's probe: any eBPF C, run by the one generic control plane (S1.5)."""

from probes.program.probe import ProgramProbe

__all__ = ["ProgramProbe"]
