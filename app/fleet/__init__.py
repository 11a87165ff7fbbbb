"""Many hosts at once: their controllers are followed by `hub.Hub`, over the API of each."""
