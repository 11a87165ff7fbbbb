"""What runs around probedeck on other people's machines."""
