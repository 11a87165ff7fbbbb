"""The console: screens, commands and keys, over a controller that runs beside it."""
