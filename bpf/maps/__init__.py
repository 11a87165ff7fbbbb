"""Maps: types, layouts, and reading them into numpy."""
