"""The prompt line: input, completion, and errors in what was typed."""
