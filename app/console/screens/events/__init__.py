"""Screen 6: events."""
