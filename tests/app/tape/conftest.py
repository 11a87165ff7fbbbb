"""The console draws at once, and tests wait for its pending work."""

from tests.app.console.conftest import _prompt

__all__ = ["_prompt"]
