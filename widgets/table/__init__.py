"""Tables of tens of thousands of rows."""
