"""User probes: any eBPF C under the generic control plane (S1.5)."""

from probes.program.probe import ProgramProbe

__all__ = ["ProgramProbe"]
