"""The controller, snapshots, and a package for each built-in probe. Knows no screen."""
