"""Events of one cause as one group."""
