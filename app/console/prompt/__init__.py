"""The prompt line: input, completion, and errors in its text."""
