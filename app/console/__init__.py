"""The console: screens, commands and keys, over a controller that runs beside it."""

from app.console.app import connect, run

__all__ = ["connect", "run"]
