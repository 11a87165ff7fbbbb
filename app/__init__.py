"""Front ends and composition: command line, console, headless, outputs, doctor and the lab."""

VERSION = "0.6.0"
"""Of all of probedeck; what a tape's `Require probedeck` is compared with."""
