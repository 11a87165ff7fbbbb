"""The CPU budget under floods."""
