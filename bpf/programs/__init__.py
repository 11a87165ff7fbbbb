"""Loaded programs: relocation, verdicts, trial runs and grace periods."""
