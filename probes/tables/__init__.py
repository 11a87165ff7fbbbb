"""Tables of metrics: from the bytes of map entries to columns."""
