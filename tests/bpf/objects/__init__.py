"""The object helper, and its parts."""
