"""noobflow: every packet of an interface, counted in its flow (S4)."""
