"""The console: screens, commands and keys, over a controller that runs beside it."""

from app.console.app import run

__all__ = ["run"]
