"""Recordings: snapshots, events and states in segments of frames; their writer and their reader."""
