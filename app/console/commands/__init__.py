"""Commands in the console: dispatch, keys, and the rules of files that commands write."""
