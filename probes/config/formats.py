"""Names of the formats that a configuration's `format` may have."""

FORMAT_NAMES: list[str] = []
"""Filled by the program that writes tables. While the list is empty, any name passes."""
