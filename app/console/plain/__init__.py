"""The console as lines of text, for screen readers and terminals without cursor movement."""
