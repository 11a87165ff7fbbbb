"""Tables of metrics: the conversion of map entries to columns."""
