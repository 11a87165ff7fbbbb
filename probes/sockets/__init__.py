"""Owners of flows: processes, units, containers and pods, and what limits their connections."""
