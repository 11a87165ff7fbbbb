"""What is measured: the controller, snapshots, and one package per built-in probe. Knows no screen."""
