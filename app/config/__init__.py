"""Settings: configuration file, environment and options, in that order; the last one wins."""
