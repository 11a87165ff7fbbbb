"""What is measured: controller, snapshots, a package for each built-in probe. Knows no screen."""
