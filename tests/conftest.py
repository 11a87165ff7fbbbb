"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import tempfile

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's settings from the tests, and the tests' state from the user."""
    os.environ["PROBEDECK_CONFIG"] = "none"
    # Files of the tests belong to root, also where root is there by sudo.
    os.environ.pop("SUDO_UID", None)
    state = tempfile.TemporaryDirectory(prefix="probedeck-tests-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name


_ON_SCREEN = tuple(f"tests/{name}/" for name in (
    "app/console", "app/commands", "app/config", "app/tape", "widgets", "probes/filter",
))  # fmt: skip
_TIMED = (
    "test_pty", "test_terminal", "test_runs", "test_cost", "test_editor", "test_driver",
    "test_fuzz",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that need no kernel and no clock may run beside each other."""
    for item in items:
        if item.nodeid.startswith(_ON_SCREEN) and item.path.stem not in _TIMED:
            item.add_marker(pytest.mark.screen)


def pytest_collection_finish() -> None:
    """Keep all objects of the collection out of later garbage collections: they stay to the end."""
    gc.collect()
    gc.freeze()
