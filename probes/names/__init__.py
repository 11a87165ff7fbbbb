"""Names of addresses, learned from DNS answers and TLS connections that pass."""
