"""Snapshots and events as files: one table a view or metric, a schema in every row."""
