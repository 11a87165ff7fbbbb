"""Outputs of a run: exporters that deliver windows and events to other programs."""
