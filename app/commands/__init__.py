"""Commands of the console: one registry for keys, palette, prompt, tapes, `--exec` and REST."""
