"""Outputs to files that other engines read: Parquet and JSON lines; and SQL over them."""
