"""NetFlow v9's features 1 to 15, any of them, as the source of a probe (S1.30, S1.31)."""
