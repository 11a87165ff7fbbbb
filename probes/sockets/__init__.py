"""Owners of flows (processes, units, containers and pods), and limits of their connections."""
