"""Actions of policies against a flood."""
