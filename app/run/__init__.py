"""One run of probedeck: its parameters, start, and headless main loop."""
