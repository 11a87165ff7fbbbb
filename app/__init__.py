"""Front ends and composition: command line, console, headless, outputs, doctor and the lab."""
