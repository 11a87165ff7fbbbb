"""As for the console: drawn as soon as there is something, waited for by what it has to do."""

from tests.app.console.conftest import _prompt

__all__ = ["_prompt"]
