"""Alerts: transitions of policies and the health of a run, to people and their programs."""
