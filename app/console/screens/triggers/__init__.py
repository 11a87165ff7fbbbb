"""Screen 4: the monitor's policies and applications."""
