"""Settings of all tests."""

from __future__ import annotations

import gc
import os
import tempfile

import pytest

_WAITING = ("tests/topologies/", "tests/probes/path/active/", "tests/app/cli/", "tests/app/run/")


def pytest_configure(config: pytest.Config) -> None:
    """Hide the user's settings from the tests, and the tests' state from the user."""
    os.environ["PROBEDECK_CONFIG"] = "none"
    # The search for owners loads programs for a second: its own tests begin it.
    os.environ["PROBEDECK_OWNERS"] = "0"
    # Files of the tests belong to root, also where root is there by sudo.
    os.environ.pop("SUDO_UID", None)
    state = tempfile.TemporaryDirectory(prefix="probedeck-tests-")
    config.add_cleanup(state.cleanup)
    os.environ["XDG_STATE_HOME"] = state.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that mostly wait: last, they would leave workers without a test."""
    items.sort(key=lambda item: not item.nodeid.startswith(_WAITING))


def pytest_collection_finish() -> None:
    """Keep all objects of the collection out of later garbage collections: they stay to the end."""
    gc.collect()
    gc.freeze()
