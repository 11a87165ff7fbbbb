"""Analysis of round-trip times per hop: queues, route changes, balancing, loss (S3.20)."""
