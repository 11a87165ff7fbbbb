"""The monitor under a controller: its policies, and what they cause beside applications."""
