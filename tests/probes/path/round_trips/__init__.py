"""Round trips of the flow itself."""
