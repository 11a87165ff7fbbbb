"""noobprobe: round-trip times of every hop, measured by the application's own flows (S3)."""
