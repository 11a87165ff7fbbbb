"""Playing and recording tapes in the console."""
