"""Programs and files around probedeck, for other people's machines."""
