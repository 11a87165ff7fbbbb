"""Live state of the console: frames, the timeline, and what builds them from snapshots."""
