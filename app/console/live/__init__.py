"""Live state of the console: builders of views, frames and the timeline."""

BUSY = 0.25
"""Share of a window that makes reading the tables remarkable."""
FULL = 0.5
"""Used share of a table that is remarkable."""
