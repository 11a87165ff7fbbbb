"""Parts of the counters of selections: estimates, and outgoing packets."""
